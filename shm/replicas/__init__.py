"""Replica sets, the view of which memory nodes are there, and the replacement of lost ones."""
