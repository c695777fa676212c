"""Repairable transactions (rTX)."""
