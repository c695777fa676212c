"""Known-bad variants of each kind of store, for the checkers to catch."""
