"""LOCO's channels: objects that many processes share, composed of smaller ones."""
