"""Routed experts by explicit counts of tokens per expert.

`moe` has the shipped table's columns: tokens dealt out evenly ("balanced") or chosen independently
("uniform", which touches fewer experts). `moe_counts` takes the counts themselves apart: how many experts
are touched, and how many picks the busiest has.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import product
from typing import Any

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, need_torch, version_of
from simserve.profiler.ops.moe_kernels import Routed, expert_backends, expert_weights, layer
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import (
    TOLERANCE,
    copies,
    finite,
    normal,
    relative_error,
    sampled,
    whole,
    width_of,
)

LOADS = ("balanced", "uniform")
PATTERNS = ("even", "one hot", "zipf")
"""Of `moe_counts`: the simulator makes its rule of the first two; the third is there to judge the rule."""


def balanced_counts(experts: int, picks: int, touched: int | None = None) -> list[int]:
    """Return `picks` dealt out evenly over the first `touched` experts (all if None)."""
    among = min(touched or experts, picks)
    return [picks // among + (e < picks % among) if e < among else 0 for e in range(experts)]


def skewed_counts(experts: int, tokens: int, topk: int, touched: int) -> list[int]:
    """Return counts with one expert picked by every token, the other picks dealt evenly over the rest."""
    rest = balanced_counts(experts - 1, tokens * (topk - 1), touched - 1) if topk > 1 else [0] * (experts - 1)
    return [tokens, *rest]


def uniform_counts(experts: int, tokens: int, topk: int) -> list[int]:
    """Return counts of tokens that each pick `topk` different experts at random (the same ones every
    time)."""
    draw = random.Random(f"{experts} {tokens} {topk}")
    counts = [0] * experts
    for _ in range(tokens):
        for expert in draw.sample(range(experts), topk):
            counts[expert] += 1
    return counts


def zipf_counts(experts: int, tokens: int, topk: int) -> list[int]:
    """Return counts of tokens that pick `topk` experts with weights 1 / rank (the same ones every time)."""
    draw = random.Random(f"zipf {experts} {tokens} {topk}")
    counts = [0] * experts
    for _ in range(tokens):
        # Of exponential clocks with these rates the first to ring are picked.
        clocks = sorted(range(experts), key=lambda e: draw.expovariate(1.0 / (e + 1)))
        for expert in clocks[:topk]:
            counts[expert] += 1
    return counts


def picks_of(counts: list[int], tokens: int) -> list[list[int]]:
    """Return [tokens][topk] expert ids with these counts, no token picking one expert twice.

    Raises `ValueError` if the counts are not a whole number of picks per token, or one exceeds the tokens.
    """
    total = sum(counts)
    if total % tokens or max(counts) > tokens:
        raise ValueError(f"counts of {total} picks, at most {max(counts)}, cannot be made by {tokens} tokens")
    dealt = [expert for expert, count in enumerate(counts) for _ in range(count)]
    return [dealt[token::tokens] for token in range(tokens)]


class _Experts:
    """What both tables share."""

    name = ""

    def _dtypes(self, shapes: Shapes) -> list[str]:
        """Return the dtypes of experts' weights: that of activations, and what else weights come in."""
        return list(dict.fromkeys((shapes.dtype, *shapes.weight_dtypes)))

    def _kernel(
        self, case: Case, device: Device, counts: list[int], tokens: int, hidden: int, inter: int
    ) -> Kernel:
        dtype, experts = case["dtype"], len(counts)
        activations = "bf16" if dtype.startswith("fp8") else dtype
        expert_bytes = 3 * hidden * inter * width_of(dtype)
        rows_bytes = 4 * tokens * hidden * width_of(activations)
        touched = sum(count > 0 for count in counts)
        # A call reads the experts that are picked, the same ones whenever a copy's turn comes.
        sets = device.rotation(experts * expert_bytes + rows_bytes, touched * expert_bytes + rows_bytes)
        ids = whole(device, picks_of(counts, tokens))
        topk = ids.shape[1]
        x = copies(normal(device, tokens, hidden, dtype=activations), sets)
        up, up_scales = expert_weights(device, dtype, (experts, 2 * inter, hidden), hidden**-0.5, sets)
        down, down_scales = expert_weights(device, dtype, (experts, hidden, inter), inter**-0.5, sets)
        weights = need_torch().full((tokens, topk), 1.0 / topk, device=device.place)
        scales = None if up_scales is None else (up_scales, down_scales)
        made = layer(case.backend, Routed(device, dtype, x, up, down, scales, ids, weights, counts))

        def error() -> float:
            output = made.call(0)
            if not finite(output):
                return float("inf")
            rows = sampled(tokens, 8)
            return relative_error(output[rows], _reference(x[0][rows], ids[rows], weights[rows], *made.plain))

        # Two products, each of which rounds its input, with an activation between.
        tolerance = 2 * TOLERANCE[dtype]
        return Kernel(made.call, sets, error, tolerance, made.name, version_of(case.backend), rows=tokens)


def _reference(x: Any, ids: Any, weights: Any, up: Any, down: Any) -> Any:
    """Return the layer in float64, pick by pick."""
    torch = need_torch()
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for token in range(len(x)):
        for pick, expert in enumerate(ids[token].tolist()):
            gate, value = (up[expert].double() @ x[token].double()).chunk(2)
            made = down[expert].double() @ (gate * torch.sigmoid(gate) * value)
            total[token] += weights[token, pick].double() * made
    return total


class Moe(_Experts):
    """The `moe` table (`ep` is 1: the experts of one GPU of a TP group)."""

    name = "moe"
    key_columns = ("dtype", "hidden", "inter", "experts", "topk", "tp", "ep", "load", "alpha", "tokens")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield both loads at every token count."""
        tokens = shapes.sizes.tokens
        for dtype, shape, load in product(self._dtypes(shapes), shapes.experts, LOADS):
            for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                values = (dtype, shape.hidden, shape.inter, shape.experts, shape.topk, shape.tp)
                key = tuple(zip(self.key_columns, (*values, 1, load, 0.0, count), strict=True))
                for backend in expert_backends(device, dtype):
                    yield Case(self.name, key, backend, level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        experts, topk, tokens = case["experts"], case["topk"], case["tokens"]
        counts = (
            balanced_counts(experts, tokens * topk)
            if case["load"] == "balanced"
            else uniform_counts(experts, tokens, topk)
        )
        return self._kernel(case, device, counts, tokens, case["hidden"], -(-case["inter"] // case["tp"]))


class MoeCounts(_Experts):
    """`moe_counts`: by experts touched and the busiest one's share (`inter` is that of one GPU)."""

    name = "moe_counts"
    key_columns = ("dtype", "hidden", "inter", "experts", "topk", "pattern", "touched", "busiest", "tokens")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield even deals over few, half and all experts, and one expert that every token picks."""
        tokens = tuple(count for count in shapes.sizes.tokens if count >= 4)[::2]
        for dtype, shape in product(self._dtypes(shapes), shapes.experts):
            inter = -(-shape.inter // shape.tp)
            touches = sorted({shape.topk, shape.experts // 4, shape.experts // 2, shape.experts})
            for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                for pattern in PATTERNS:
                    for touched in touches if pattern != "zipf" else (shape.experts,):
                        counts = _counts(pattern, shape.experts, count, shape.topk, touched)
                        if counts is None:
                            continue
                        reached = sum(number > 0 for number in counts)
                        values = (
                            dtype, shape.hidden, inter, shape.experts, shape.topk, pattern, reached,
                            max(counts), count,
                        )  # fmt: skip
                        key = tuple(zip(self.key_columns, values, strict=True))
                        for backend in expert_backends(device, dtype):
                            yield Case(self.name, key, backend, level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        counts = _counts(case["pattern"], case["experts"], case["tokens"], case["topk"], case["touched"])
        assert counts is not None
        return self._kernel(case, device, counts, case["tokens"], case["hidden"], case["inter"])


def _counts(pattern: str, experts: int, tokens: int, topk: int, touched: int) -> list[int] | None:
    """Return the counts of a pattern; None if these picks cannot be dealt so."""
    if not topk <= touched <= experts or (pattern == "one hot" and topk < 2):
        return None
    if pattern == "even":
        counts = balanced_counts(experts, tokens * topk, touched)
    elif pattern == "zipf":
        counts = zipf_counts(experts, tokens, topk)
    else:
        counts = skewed_counts(experts, tokens, topk, touched)
    return counts if max(counts) <= tokens else None
