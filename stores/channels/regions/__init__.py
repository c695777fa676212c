"""Regions of channels: memory by full name, and the catalogue that finds it again."""
