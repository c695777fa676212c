"""RACE hashing: the unreplicated, lock-free hash store `race`."""
