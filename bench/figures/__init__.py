"""The papers' figures: counted round trips and bytes, and virtual time."""
