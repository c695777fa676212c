"""Benchmarks: YCSB workloads, the peers that limpet is measured against, and their reports."""
