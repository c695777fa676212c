"""Drills on live pools with real processes; the demo is one of them."""
