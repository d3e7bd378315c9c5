"""Vidur's request CSV, with Frontier's column for block ids."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from simserve.core import Trace
from simserve.units import NS_PER_S
from simserve.workload.csv_text import counts_agree, csv_bytes, id_texts
from simserve.workload.writers.base import WRITERS, column_losses, decimal


@WRITERS.register("vidur")
class VidurWriter:
    """arrived_at (s, exact), num_prefill_tokens, num_decode_tokens, block_hash_ids if there are any."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)

    def losses(self, trace: Trace) -> list[str]:
        """Lost: sessions, output limits, priorities; labels become columns."""
        lost = column_losses(trace, "labels", "block_ids")
        return lost if counts_agree(trace) else [*lost, "block ids that disagree with the lengths"]

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the CSV."""
        columns = {
            "arrived_at": [decimal(ns, NS_PER_S) for ns in trace.arrival_ns.tolist()],
            "num_prefill_tokens": trace.prompt_tokens.tolist(),
            "num_decode_tokens": trace.output_tokens.tolist(),
        }
        if trace.block_ids is not None:
            columns["block_hash_ids"] = id_texts(trace)
        return csv_bytes(columns | {name: column.tolist() for name, column in trace.labels.items()})
