"""Memory nodes over a network: messages, libfabric, the server and its clients."""
