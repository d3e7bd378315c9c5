"""Model blocks: from a layer's architecture to the kernels that one GPU runs for it."""
