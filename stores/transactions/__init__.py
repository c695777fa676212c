"""What transactions on hash stores and on trees share: locks, logs, staged changes, repair."""
