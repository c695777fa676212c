"""The explorer: the shipped code under many schedules, and virtual time."""
