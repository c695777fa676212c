"""SWARM-KV: replicated in-place and out-of-place registers (Murat et al., SOSP '24)."""
