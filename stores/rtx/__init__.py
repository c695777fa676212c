"""Repairable transactions (rTX), as users have them; and the store `rtx-race`."""
