"""Metrics: what a result means in numbers, and the folder in which a run is kept."""

from simserve.metrics.columns import Slo
from simserve.metrics.store import StoredRun, read_results, write_results
from simserve.metrics.summary import Summary, summarize

__all__ = ["Slo", "StoredRun", "Summary", "read_results", "summarize", "write_results"]
