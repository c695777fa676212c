"""Scenes that show known-bad variants step by step. The table is in fault/test_known_bad.py."""
