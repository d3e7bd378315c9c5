"""When replicas step: microbatches of a pipeline, and ranks that step together."""
