"""Stores, channels and regions by name, with their kind, parameters and codec."""
