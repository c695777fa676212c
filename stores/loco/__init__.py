"""LOCO's kvstore: gets without locks by local indexes, which trackers keep up to date."""
