"""Prefill/decode disaggregation: two kinds of replicas, and KV that moves between them."""
