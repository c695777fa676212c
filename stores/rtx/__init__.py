"""Repairable transactions (rtx.txt)."""
