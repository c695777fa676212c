"""Repairable transactions (rTX): locks, log, commit, repair; `rtx-race`."""
