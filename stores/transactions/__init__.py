"""The common part of transactions on hash stores and trees: locks, logs, staged changes, repair."""
