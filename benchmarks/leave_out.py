"""How well the predictor knows what it has not seen: measured points held out, predicted, compared.

Three ways to hold out, on the very grids that the kernels build: 10 % of the points at random; every
inner line of every axis in turn (an unseen batch size, head count, width ...), as `lines`; the largest
quarter of the swept axis, as `top`. Prints the median and 95th percentile of |predicted / measured - 1|,
and for lines the share of points within a factor of 1.3.

python benchmarks/leave_out.py [h100_sxm ...]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from simserve.hardware import load_gpu
from simserve.latency import shipped_profiles
from simserve.latency.tables.coverage import measured_grids
from simserve.latency.tables.grid import Float64, Grid


def grids_of(gpu: str, most_expert_shapes: int = 10_000) -> dict[str, list[Grid]]:
    """Return the grids of one GPU by operation, built by the kernels themselves."""
    grids: dict[str, list[Grid]] = defaultdict(list)
    for key, grid in measured_grids(load_gpu(gpu), shipped_profiles(), most_expert_shapes):
        grids[_operation(key)].append(grid)
    return grids


def _operation(key: tuple) -> str:
    """Return the operation's name, split where the bars are."""
    if key[0] == "gemm":
        return f"gemm {key[1]}"
    if key[0] == "moe":
        return f"moe, {'EP 1' if key[1].ep == 1 else 'EP > 1'}"
    if key[0] == "collective":
        return f"collective, {'NCCL' if key[2] == 'nccl' else 'custom all-reduce'}"
    return key[0]


def random_errors(grid: Grid, seed: int = 0) -> Float64:
    """Return errors of a tenth of the points, held out together."""
    size = len(grid.source[1])
    return _errors(grid, np.random.default_rng(seed).random(size) < 0.1) if size >= 10 else np.empty(0)


def line_errors(grid: Grid) -> Float64:
    """Return errors of every inner line of every axis, held out one at a time."""
    parts = [_errors(grid, column == value) for column in grid.source[0] for value in np.unique(column)[1:-1]]
    return np.concatenate(parts) if parts else np.empty(0)


def top_errors(grid: Grid) -> Float64:
    """Return errors of the largest quarter of the swept axis."""
    swept = grid.source[0][-1]
    return _errors(grid, swept > np.quantile(np.unique(swept), 0.75))


def _errors(grid: Grid, held_out: np.ndarray) -> Float64:
    columns, latency_us, roofline, trend = grid.source
    kept = ~held_out
    if not held_out.any() or kept.sum() < 4:
        return np.empty(0)
    reduced = Grid([column[kept] for column in columns], latency_us[kept], roofline, trend)
    predicted = reduced.at(*[column[held_out] for column in columns])
    return np.abs(predicted / latency_us[held_out] - 1)


def rows(gpu: str, most_expert_shapes: int) -> Iterator[tuple[str, str, Float64, Float64, Float64]]:
    """Yield (GPU, operation, random errors, line errors, top-quarter errors)."""
    for name, grids in sorted(grids_of(gpu, most_expert_shapes).items()):
        parts = [(random_errors(g), line_errors(g), top_errors(g)) for g in grids]
        random, lines, top = (np.concatenate(part) for part in zip(*parts, strict=True))
        yield gpu, name, random, lines, top


def _figures(errors: Float64) -> str:
    if not len(errors):
        return "- | -"
    return f"{np.median(errors):.1%} | {np.quantile(errors, 0.95):.1%}"


def main() -> None:
    """Print one table row per operation and GPU."""
    parser = argparse.ArgumentParser(description="Hold-out errors of the predictor.")
    parser.add_argument("--expert-shapes", type=int, default=10_000)
    parser.add_argument("gpus", nargs="*", default=["h100_sxm"])
    options = parser.parse_args()
    print("| GPU | operation | points | random | p95 | lines | p95 | within 1.3x | top | p95 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for gpu in options.gpus:
        for _, name, random, lines, top in rows(gpu, options.expert_shapes):
            inside = f"{(lines <= 0.3).mean():.1%}" if len(lines) else "-"
            print(f"| {gpu} | {name} | {len(random)} | {_figures(random)} | {_figures(lines)} "
                  f"| {inside} | {_figures(top)} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
