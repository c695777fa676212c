"""DTX: transactions after DrTM+H, with a value log and a recovery that stops all clients."""
