"""Azure LLM inference CSV. The stamps count from a date of our own: a trace knows no calendar."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.workload.csv_text import csv_bytes
from simserve.workload.writers.base import WRITERS, column_losses

_FIRST_STAMP = np.datetime64("2000-01-01T00:00:00", "ns")
_TICK_NS = 100


@WRITERS.register("azure")
class AzureWriter:
    """TIMESTAMP (seven decimals), ContextTokens, GeneratedTokens."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)

    def losses(self, trace: Trace) -> list[str]:
        """Lost: everything but arrivals (to 100 ns) and lengths; labels become columns."""
        lost = column_losses(trace, "labels")
        finer = int(np.count_nonzero(trace.arrival_ns % _TICK_NS))
        return [*lost, f"{finer:,} stamps finer than 100 ns"] if finer else lost

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the CSV; stamps are cut to 100 ns."""
        stamps = np.datetime_as_string(_FIRST_STAMP + trace.arrival_ns.astype("timedelta64[ns]"), unit="ns")
        return csv_bytes(
            {
                "TIMESTAMP": [text[:27].replace("T", " ") for text in stamps.tolist()],
                "ContextTokens": trace.prompt_tokens.tolist(),
                "GeneratedTokens": trace.output_tokens.tolist(),
                **{name: column.tolist() for name, column in trace.labels.items()},
            }
        )
