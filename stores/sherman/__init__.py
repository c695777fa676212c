"""A B-link tree of nodes that transactions change (Sherman; rTX section 5)."""
