"""Limpet beside other ways to share state between processes, driven by one loop."""
