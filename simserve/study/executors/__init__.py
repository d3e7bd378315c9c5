"""Executors: where the runs of a study are done."""
