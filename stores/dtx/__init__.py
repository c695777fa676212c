"""Distributed transactions after DrTM+H: value log, and a recovery that stops all clients."""
