"""How well do measured experts tell the time of a shape that was not measured?

`python -m benchmarks.other_shapes` predicts each shape of the tables from the nearest one of another
architecture, or of the same one at another TP degree, by the rule of `RoutedExperts`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from simserve.hardware import load_gpu
from simserve.latency import shipped_profiles
from simserve.latency.kernels.expert_rows import (
    SHAPE,
    TABLE_DTYPES,
    Experts,
    gated_rows,
    preferred,
    shapes_of,
)
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import Float64
from simserve.latency.tables.profiles import ProfileStore, ProfileTable
from simserve.latency.tables.roofline import peaks_of

GPUS = ("h100_sxm", "h200_sxm", "b200_sxm")
DTYPES = ("bf16", "fp8_block", "mxfp4", "int4")
SIZES = ((1, 16), (17, 256), (257, 10**9))


class WithoutSome(ProfileStore):
    """The shipped tables with some rows of experts left out."""

    def __init__(self, rows: ProfileTable) -> None:
        super().__init__(shipped_profiles().folders)
        self._rows = rows

    def table(self, gpu: str, op: str) -> ProfileTable | None:
        """Return the rows that are left of the experts', and no other table."""
        return self._rows if op == "moe" else None


def errors(gpu_name: str, engine: str, dtype: str) -> Iterator[tuple[str, Float64, Float64]]:
    """Yield (what was left out, tokens, error) of each shape on one GPU (balanced loads, EP 1)."""
    gpu = load_gpu(gpu_name)

    def machine(store: ProfileStore) -> Machine:
        return Machine(gpu_name, peaks_of(gpu), store, True, gpu.sm_arch, engine=engine)

    rows = gated_rows(machine(shipped_profiles()), TABLE_DTYPES.get(dtype, dtype), 0.0)
    if rows is None or engine not in rows.values("backend"):
        return
    rows = preferred(rows.select(ep=1), engine)
    columns = np.stack([rows.numbers(name) for name in SHAPE])
    for shape in shapes_of(rows):
        same = (columns[:4] == shape[:4, None]).all(0)
        this = same & (columns[4] == shape[4])
        experts = Experts(*shape.astype(int).tolist(), dtype=dtype)
        tokens, true_us = rows.where(this).numbers("tokens"), rows.where(this).numbers("latency_us")
        for what, kept in (("architecture", ~same), ("TP degree", same & ~this)):
            if kept.any():
                routed = RoutedExperts(machine(WithoutSome(rows.where(kept))), experts, "balanced")
                yield what, tokens, routed.cost(tokens).us / true_us - 1


def main() -> None:
    """Print the median error in % by number of tokens."""
    found: dict[tuple[str, ...], list[Float64]] = defaultdict(list)
    for gpu in GPUS:
        for engine in ("sglang", "trtllm"):
            for dtype in DTYPES:
                for what, tokens, error in errors(gpu, engine, dtype):
                    found[what, dtype, engine].append(np.stack([tokens, 100 * np.abs(error)]))
    print("left out      type       engine   " + "".join(f"{f'{low}+ tokens':>14}" for low, _ in SIZES))
    for (what, dtype, engine), parts in sorted(found.items()):
        tokens, error = np.concatenate(parts, axis=1)
        medians = [np.median(error[(tokens >= low) & (tokens <= high)]) for low, high in SIZES]
        print(f"{what:13} {dtype:10} {engine:9}" + "".join(f"{median:14.1f}" for median in medians))


if __name__ == "__main__":
    main()
