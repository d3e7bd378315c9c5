"""Synthetic workloads: arrivals, lengths and content drawn from distributions."""
