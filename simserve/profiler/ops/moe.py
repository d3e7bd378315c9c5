"""Routed experts by explicit counts of tokens per expert.

`moe` has the shipped table's columns: tokens dealt out evenly ("balanced") or chosen independently
("uniform", which touches fewer experts). `moe_counts` takes the counts themselves apart: how many experts
are touched, and how many picks the busiest has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from simserve.profiler import torch_kernels
from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device
from simserve.profiler.need import library, need_torch, version_of
from simserve.profiler.reference import TOLERANCE, relative_error, sampled
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import copies, normal, whole, width_of

LOADS = ("balanced", "uniform")


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

    def _backends(self, device: Device) -> list[str]:
        return ["torch", *(["vllm"] if device.is_cuda and library("vllm") else [])]

    def _kernel(
        self, case: Case, device: Device, counts: list[int], tokens: int, hidden: int, inter: int
    ) -> Kernel:
        dtype, experts = case["dtype"], len(counts)
        elements = 3 * experts * hidden * inter + 4 * tokens * hidden
        sets = device.rotation(elements * width_of(dtype))
        ids = whole(device, picks_of(counts, tokens))
        topk = ids.shape[1]
        x = copies(normal(device, tokens, hidden, dtype=dtype), sets)
        up = copies(normal(device, experts, 2 * inter, hidden, dtype=dtype, scale=hidden**-0.5), sets)
        down = copies(normal(device, experts, hidden, inter, dtype=dtype, scale=inter**-0.5), sets)
        weights = need_torch().full((tokens, topk), 1.0 / topk, device=device.place)
        call, name = _call(case.backend, device, dtype, x, up, down, ids, weights)

        def error() -> float:
            output = call(0)
            if not bool(need_torch().isfinite(output.float()).all()):
                return float("inf")
            rows = sampled(tokens, 8)
            expected = _reference(x[0][rows], ids[rows], weights[rows], up[0], down[0])
            return relative_error(output[rows], expected)

        return Kernel(call, sets, error, TOLERANCE[dtype], name, version_of(case.backend))


def _call(
    backend: str,
    device: Device,
    dtype: str,
    x: list[Any],
    up: list[Any],
    down: list[Any],
    ids: Any,
    weights: Any,
) -> tuple[Callable[[int], Any], str]:
    if backend == "vllm":
        import importlib

        fused = importlib.import_module("vllm.model_executor.layers.fused_moe").fused_experts
        short = ids.to(need_torch().int32)
        return lambda i: fused(x[i], up[i], down[i], weights, short), "fused_experts"
    grouped = device.compute_capability >= 90 and dtype == "bf16" and hasattr(need_torch(), "_grouped_mm")
    name = "torch._grouped_mm" if grouped else "one product per expert"
    return lambda i: torch_kernels.experts_layer(x[i], ids, weights, up[i], down[i], grouped), name


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
        for shape in shapes.experts:
            for load in LOADS:
                for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                    values = (shapes.dtype, shape.hidden, shape.inter, shape.experts, shape.topk, shape.tp)
                    key = tuple(zip(self.key_columns, (*values, 1, load, 0.0, count), strict=True))
                    for backend in self._backends(device):
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
        for shape in shapes.experts:
            inter = -(-shape.inter // shape.tp)
            touches = sorted({shape.topk, shape.experts // 4, shape.experts // 2, shape.experts})
            for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                for pattern in ("even", "one hot"):
                    for touched in touches:
                        counts = _counts(pattern, shape.experts, count, shape.topk, touched)
                        if counts is None:
                            continue
                        reached = sum(number > 0 for number in counts)
                        values = (
                            shapes.dtype, shape.hidden, inter, shape.experts, shape.topk, pattern, reached,
                            max(counts), count,
                        )  # fmt: skip
                        key = tuple(zip(self.key_columns, values, strict=True))
                        for backend in self._backends(device):
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
    else:
        counts = skewed_counts(experts, tokens, topk, touched)
    return counts if max(counts) <= tokens else None
