"""Wide expert parallelism in a steady state beside published figures: python -m benchmarks.moe_published

One step of a group in which every rank has the same work, by the kernels that ship; nothing is fitted to the
figures but the one unknown that the source leaves out: the skew of its experts, from one of two ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from simserve.core import Chunk, Request
from simserve.engines.sglang.overhead import OVERHEAD as SGLANG
from simserve.experts import contiguous
from simserve.experts.balancing import eplb
from simserve.experts.popularity import Zipf
from simserve.experts.rank_load import RankMaximum
from simserve.hardware import load_gpu
from simserve.latency.compile import compile_lockstep_latency
from simserve.latency.lockstep import LockstepLatency, RankWork
from simserve.latency.overlap import OverlapSpec
from simserve.latency.spec_decode import compile_speculative_latency
from simserve.model import Parallelism, load_model
from simserve.model.draft import drafter_of

MODEL = load_model("deepseek-v3")
LAYERS, EXPERTS, TOPK, REDUNDANT = 58, 256, 8, 32
PREFILL_RANKS, DECODE_RANKS = 32, 72
PREFILL_TOKENS, PROMPT = 16_384, 2_000
"""Tokens per device in the source's prefill steps, and its prompts."""


class Row(NamedTuple):
    """One figure."""

    what: str
    published: float
    ours: float
    note: str = ""


DAY6_BATCH = round(1850 / 21)
"""Requests per GPU that follow from its rate and 20 to 22 tokens/s for each (as in effects/ep72_decode)."""
EPLB_LOSS = 59_337 / 50_302
"""What the source's own placement loses in prefill against a simulated perfect one (4,096-token prompts)."""


def latency(ranks: int, two_batch: bool, copies: bool = True) -> LockstepLatency:
    """Return the step times of a group of H100 on 8-bit weights, with redundant experts or without."""
    parallel = Parallelism(dp=ranks, ep=ranks)
    overlap = OverlapSpec.model_validate({"two_batch": two_batch, "min_decode_tokens": 2})
    return compile_lockstep_latency(
        MODEL,
        load_gpu("h100_sxm"),
        parallel,
        weights_dtype="fp8_block",
        redundant_experts=redundant_experts(ranks) if copies else 0,
        overlap=overlap,
        overhead=SGLANG,
    )


def redundant_experts(ranks: int) -> int:
    """Return 32, as the sources have, or what fills the ranks where that does not divide."""
    return REDUNDANT if (EXPERTS + REDUNDANT) % ranks == 0 else -EXPERTS % ranks


def maximum(s: float, ranks: int, balanced: bool) -> RankMaximum:
    """Return the busiest rank under Zipf(s), with EPLB or with experts in order."""
    shares = Zipf(s=s).shares(LAYERS, EXPERTS, TOPK, seed=1)
    redundant = redundant_experts(ranks)
    if balanced:
        return RankMaximum(shares, eplb(shares, ranks, redundant))
    return RankMaximum(shares, contiguous(LAYERS, EXPERTS, ranks, redundant))


def decode_tokens_per_s(lat: LockstepLatency, batch: int, context: int, experts: RankMaximum | None) -> float:
    """Return tokens/s of one GPU when every rank decodes `batch` sequences."""
    sequences = np.full(lat.ranks, batch, np.int64)
    step_ns = lat.decode_run_ns(sequences, np.full((lat.ranks, 1), context, np.int64), experts)[0][0]
    return batch / step_ns * 1e9


def prefill_tokens_per_s(
    lat: LockstepLatency, tokens: int, prompt: int, experts: RankMaximum | None
) -> float:
    """Return prompt tokens/s of one GPU when every rank computes `tokens` in whole prompts."""
    request = Request(0, 0, prompt, 1)
    chunks = [Chunk(request, prompt, 0, True)] * (tokens // prompt)
    works = [RankWork(0, 0, chunks)] * lat.ranks
    none = np.zeros(0, np.int64)
    return len(chunks) * prompt / lat.mixed_step_ns(works, none, none, experts)[0] * 1e9


def skew_for(gain: float, ratio: Callable[[float], float]) -> float:
    """Return the Zipf exponent at which EPLB multiplies throughput by `gain`."""
    low, high = 0.0, 1.5
    while high - low > 0.01:
        s = (low + high) / 2
        low, high = (s, high) if ratio(s) < gain else (low, s)
    return (low + high) / 2


def rows() -> list[Row]:
    """Return the figures of prefill and decode."""
    prefill = latency(PREFILL_RANKS, two_batch=True)
    decode = latency(DECODE_RANKS, two_batch=True)

    def prefill_gain(s: float) -> float:
        rates = [
            prefill_tokens_per_s(prefill, PREFILL_TOKENS, PROMPT, maximum(s, PREFILL_RANKS, how))
            for how in (True, False)
        ]
        return rates[0] / rates[1]

    def decode_gain(s: float) -> float:
        rates = [
            decode_tokens_per_s(decode, 256, PROMPT + 50, maximum(s, DECODE_RANKS, how))
            for how in (True, False)
        ]
        return rates[0] / rates[1]

    s = skew_for(1.49, prefill_gain)
    return [
        Row("EPLB, prefill EP32, times", 1.49, prefill_gain(s), f"fixes the skew: Zipf {s:.2f}"),
        Row("EPLB, decode EP72, times", 2.54, decode_gain(s), "predicted with that skew"),
        Row("skew for which decode gains 2.54, Zipf s", s, skew_for(2.54, decode_gain), "against prefill's"),
        *prefill_rows(prefill, s),
        *decode_rows(decode, s),
    ]


def prefill_rows(two: LockstepLatency, s: float) -> list[Row]:
    """Return prefill on 32 GPUs: the engine with its own placement, and with perfectly even experts."""
    even, serial = (latency(PREFILL_RANKS, two_batch=how, copies=False) for how in (True, False))
    balanced = maximum(s, PREFILL_RANKS, True)
    perfect, alone = (prefill_tokens_per_s(it, PREFILL_TOKENS, 4096, None) for it in (even, serial))
    served = prefill_tokens_per_s(two, PREFILL_TOKENS, PROMPT, balanced)
    return [
        Row("prefill EP32, 4,096-token prompts, even experts, DeepSeek's profile", 62_713 / 8, perfect),
        Row("the same, SGLang", 59_337 / 8, perfect),
        Row("two batches in prefill, times", 1.31, perfect / alone, "published: 1.27 to 1.35"),
        Row("prefill EP32, 2,000-token prompts, tokens/s per GPU", 52_272 / 8, served),
        Row("the same, less what the source's EPLB loses", 52_272 / 8, served / EPLB_LOSS, "59,337 / 50,302"),
        Row(
            "day 6, prefill EP32, uncached tokens/s per GPU",
            32_200 / 8,
            prefill_tokens_per_s(two, PREFILL_TOKENS, 4096, balanced),
            "at capacity; a day's mean there",
        ),
    ]


def decode_rows(on: LockstepLatency, s: float) -> list[Row]:
    """Return decode on 72, 128 and 144 GPUs."""
    off, even = latency(DECODE_RANKS, two_batch=False), maximum(s, DECODE_RANKS, True)
    rate = {
        (two, batch): decode_tokens_per_s(lat, batch, PROMPT + 50, even)
        for two, lat in ((True, on), (False, off))
        for batch in (32, 64, 128, 256)
    }
    profile = latency(128, two_batch=True, copies=False)
    day6 = latency(144, two_batch=True)
    one, two = 256 / rate[False, 256], 256 / rate[True, 256]
    rest = 256 / 2222 - one
    return [
        Row(
            "decode EP128, 128 sequences, even experts",
            18_598 / 8,
            decode_tokens_per_s(profile, 128, 4096, None),
        ),
        Row("decode EP72, 256 sequences, tokens/s per GPU", 2785, rate[True, 256]),
        Row("the same without two batches", 2222, rate[False, 256]),
        Row(
            "the same with two batches and the source's rest",
            2785,
            256 / (two + rest),
            f"{1000 * rest:.0f} ms of its step are not our kernels",
        ),
        *(
            Row(f"two batches at {batch}, times", published, rate[True, batch] / rate[False, batch], note)
            for batch, published, note in (
                (256, 1.255, ""),
                (128, 1.0, "published: above 1"),
                (64, 1.0, "published: below 1"),
                (32, 0.73, ""),
            )
        ),
        Row("two batches at 256, times, with the source's rest", 1.255, (one + rest) / (two + rest)),
        Row(
            "DeepSeek day 6, decode EP144, tokens/s per GPU",
            1850,
            decode_tokens_per_s(day6, DAY6_BATCH, 4989, maximum(s, 144, True)),
            f"H100 for H800; {DAY6_BATCH} requests per GPU",
        ),
    ]


def speculation() -> list[Row]:
    """Return multi-token prediction on 16 H200: two requests per rank with contexts of 65,536."""
    parallel, gpu = Parallelism(dp=16, ep=16), load_gpu("h200_sxm")
    overhead, drafter = replace(SGLANG, overlapped=False), drafter_of(MODEL, "mtp")
    plain = compile_lockstep_latency(MODEL, gpu, parallel, weights_dtype="fp8_block", overhead=overhead)
    sequences, contexts = np.full(16, 2, np.int64), np.full((16, 1), 65_536 + 2_048, np.int64)

    def step_s(lat: LockstepLatency) -> float:
        return float(lat.decode_run_ns(sequences, contexts, None)[0][0]) / 1e9

    one = step_s(plain)
    rest = 2 / 51.0 - one
    found = [Row("no drafts, 65,536 tokens, tokens/s per GPU", 51.0, 2 / one, "no overlap scheduler")]
    for drafts, accepted, rate in ((3, 2.18, 81.5), (4, 2.44, 82.0)):
        verifying = compile_speculative_latency(
            MODEL, gpu, parallel, drafter, drafts, weights_dtype="fp8_block", overhead=overhead
        )
        step = step_s(verifying)
        found += [
            Row(f"MTP, {drafts} drafts, tokens/s per GPU", rate, 2 * accepted / step, f"accepts {accepted}"),
            Row(f"MTP, {drafts} drafts, times", rate / 51.0, accepted * one / step),
            Row(
                f"MTP, {drafts} drafts, times, with the source's host time",
                rate / 51.0,
                accepted * (one + rest) / (step + rest),
                f"{1000 * rest:.0f} ms of its step are not kernels",
            ),
        ]
    return found


def main() -> None:
    """Print the table."""
    table = Table("figure", "published", "ours", "ours / published", "note")
    for row in rows() + speculation():
        table.add_row(
            row.what, f"{row.published:,.4g}", f"{row.ours:,.4g}", f"{row.ours / row.published:.2f}", row.note
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
