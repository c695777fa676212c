"""A B-link tree of nodes that transactions change (Sherman; rtx.txt section 5)."""
