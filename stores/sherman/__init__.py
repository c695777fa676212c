"""B-link trees: `sherman` in place, `rtx-sherman` with repairable transactions (rTX section 5)."""
