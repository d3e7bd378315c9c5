"""Everything that `simserve profile check` says, as plain figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simserve.core import Chunk, Request
from simserve.errors import ProfileError, nearest
from simserve.hardware import GpuSpec, load_gpu
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts, expert_counts
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import AXES, mixes_of
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.tables.profiles import ProfileStore, ProfileTable, shipped_profiles
from simserve.latency.tables.roofline import peaks_of
from simserve.model.load import load_model
from simserve.model.spec import Parallelism
from simserve.profiler.checking.rows import (
    Agreement,
    HeldOut,
    StepCoverage,
    Suspect,
    agreement,
    coverage,
    held_out,
    not_monotone,
    scattered,
)
from simserve.profiler.journal import NAME, read_journal

# How the simulator's rules for cases without a table do on this machine, where the profiler measured them.
#
# Prompts on a cached prefix by the tile rule alone, decodes of unequal lengths as if all had the mean
# context,
# decodes beside a prompt chunk, uneven experts: see `docs/latency.md`. Where the simulator reads what was
# measured, that is judged too, on points that it does not read.

JUDGED = "zipf"
"""Pattern of `moe_counts` that no rule is made of."""
NOBODY = Request(0, 0, 1, 1)
HEADS = ("q_heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype")


class RuleError(NamedTuple):
    """Predicted over measured of one rule."""

    rule: str
    rows: int
    ratio: float
    """Median of predicted / measured."""
    median: float
    """Median of |predicted / measured - 1|."""
    p95: float


def rule_errors(gpu: GpuSpec, profiles: ProfileStore) -> list[RuleError]:
    """Return the error of each rule whose cases were measured."""
    machine = Machine(gpu.name, peaks_of(gpu), profiles, True, gpu.sm_arch, gpu.gpus_per_node)
    ratios: dict[str, list[float]] = {}
    for rule, op, predict in (
        ("prompts on a cached prefix", "attn_prefill", _on_prefix_us),
        ("decodes of unequal lengths", "attn_decode_uneven", _uneven_us),
        ("decodes beside a prompt", "attn_mixed", _mixed_us),
    ):
        ratios[rule] = [
            predict(prefill, row) / row["latency_us"]
            for prefill, row in _rules_rows(machine, profiles.table(gpu.name, op))
            if op != "attn_prefill" or row["prefix_len"]
        ]
    ratios["the same, by other mixes measured"] = list(_mixes_left_out(machine))
    ratios["uneven experts as even ones"], ratios["the same, by their counts"] = _uneven_experts(machine)
    return [_summary(rule, values) for rule, values in ratios.items() if values]


def _summary(rule: str, ratios: list[float]) -> RuleError:
    values = np.array(ratios)
    middle, high = (float(value) for value in np.quantile(np.abs(values - 1), (0.5, 0.95)))
    return RuleError(rule, len(values), float(np.median(values)), middle, high)


def _mixes_left_out(machine: Machine) -> Iterator[float]:
    """Yield predicted over measured of each mix, as the simulator reads the others."""
    table = machine.profiles.table(machine.gpu, "attn_mixed")
    if table is None or not {"batch", *HEADS} <= set(table.names):
        return
    by_heads = {prefill.heads: prefill for prefill, _ in _rules_rows(machine, table)}
    for heads, prefill in by_heads.items():
        rows = table.select(**{name: getattr(heads, name) for name in HEADS})
        places = np.arange(len(rows))
        for place in places if len(rows) > 2 else ():
            others = mixes_of(rows.where(places != place), prefill.mixed_ruled_us)
            sequences, context, cached, new = (int(rows.column(name)[place]) for name in AXES)
            ratio, _ = others.ratio(sequences, context, [Chunk(NOBODY, new, cached, True)])
            ruled_us = prefill.mixed_ruled_us(sequences, context, cached, new)
            yield ratio * ruled_us / float(rows.numbers("latency_us")[place])


def _uneven_experts(machine: Machine) -> tuple[list[float], list[float]]:
    """Return predicted over measured of experts picked by Zipf's law: as many even picks, and by counts."""
    table = machine.profiles.table(machine.gpu, "moe_counts")
    if table is None or "pattern" not in table.names:
        return [], []
    evenly, counted = [], []
    names = ("dtype", "hidden", "inter", "experts", "topk", "touched", "busiest", "tokens", "latency_us")
    rows = table.select(pattern=JUDGED)
    for row in zip(*(rows.column(name).tolist() for name in names), strict=True):
        dtype, hidden, inter, number, topk, touched, busiest, tokens, measured_us = row
        experts = Experts(hidden, inter, number, topk, 1, 1, dtype)
        picks, reached, most = (np.array([float(it)]) for it in (tokens * topk, touched, busiest))
        even = RoutedExperts(machine, experts, "uniform").cost(np.array([float(tokens)]))
        evenly.append(float(even.us[0]) / measured_us)
        counts = expert_counts(machine, experts)
        if counts is not None:
            counted.append(float(counts.us(picks, reached, most)[0]) / measured_us)
    return evenly, counted


def _rules_rows(
    machine: Machine, table: ProfileTable | None
) -> Iterator[tuple[PrefillAttention, dict[str, Any]]]:
    """Yield the kernels of a row's heads, and the row."""
    if table is None or not {"batch", *HEADS} <= set(table.names):
        return
    names = [*table.about["key_columns"], "latency_us"]
    kernels: dict[Heads, PrefillAttention] = {}
    for values in zip(*(table.column(name).tolist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        heads = Heads(*(row[name] for name in HEADS))
        if heads not in kernels:
            kernels[heads] = PrefillAttention(machine, heads, DecodeAttention(machine, heads))
        yield kernels[heads], row


def _on_prefix_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.ruled_us(row["batch"], row["q_len"], row["prefix_len"])


def _uneven_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.decode.one_us(row["batch"], row["kv_len"])


def _mixed_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.mixed_ruled_us(row["batch"], row["kv_len"], row["prefix_len"], row["q_len"])


WEAK_STEP = 0.05
"""Share of a step's time from which a kernel without measurement is worth measuring."""
WEAK_TABLE = 0.25
"""95th percentile of the held-out error from which a table wants more points."""


@dataclass(frozen=True)
class Check:
    """The findings."""

    gpu: str
    tables: dict[str, int]
    coverage: dict[str, list[StepCoverage]]
    """By model."""
    estimated: list[str]
    held_out: list[HeldOut]
    rules: list[RuleError]
    suspects: list[Suspect]
    agreements: list[Agreement]
    not_timed: list[str]
    next: list[str]
    """What to measure next, most valuable first."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        found = asdict(self)
        for steps in found["coverage"].values():
            for place, step in enumerate(steps):
                steps[place] = step._asdict() | {"weakest": [part._asdict() for part in step.weakest]}
        for name in ("held_out", "rules", "suspects", "agreements"):
            found[name] = [one._asdict() for one in getattr(self, name)]
        return found


def check_profile(
    folder: Path,
    gpu: str,
    models: list[str],
    tp: int,
    dtype: str,
    say: Callable[[str], object] = lambda _: None,
) -> Check:
    """Judge the tables in `folder`; `say` hears what is being done.

    Raises `ProfileError` if there are none, or several GPUs and no name.
    """
    store = ProfileStore([folder], shipped=False)
    gpu = _gpu(store, folder, gpu)
    spec = load_gpu(gpu, [folder])
    tables = {op: table for op in store.ops(gpu) if (table := store.table(gpu, op)) is not None}
    steps: dict[str, list[StepCoverage]] = {}
    estimated: list[str] = []
    for name in models:
        model = load_model(name)
        steps[name], missing = coverage(model, spec, Parallelism(tp=tp), dtype or _dtype(tables), store)
        estimated += [f"{name}: {one}" for one in missing]
    say("predicting points that are left out")
    errors, outliers = held_out(spec, store)
    suspects = list(outliers)
    say("looking for odd rows")
    for op, table in tables.items():
        suspects += not_monotone(op, table) + scattered(op, table)
    say("comparing with the shipped tables")
    others = ((op, table, shipped_profiles().table(gpu, op)) for op, table in tables.items())
    agreements = [
        agreement(op, table, other)
        for op, table, other in others
        if other is not None and not other.path.samefile(table.path)
    ]
    lines, _ = read_journal(folder / gpu / NAME)
    not_timed = [_outcome(line) for line in lines if line.get("status", "ok") != "ok"]
    unwritten = sum(line.get("status") == "ok" for line in lines) - sum(map(_rows, tables.values()))
    advice = [f"{unwritten} measured rows are not in the tables: the run was killed, --resume puts them in"]
    advice = advice[: unwritten > 0] + _next(steps, estimated, errors)
    return Check(
        gpu, {op: len(table) for op, table in tables.items()}, steps, estimated, errors, rule_errors(spec,
        store), suspects, [one for one in agreements if one], not_timed, advice,
    )  # fmt: skip


def _gpu(store: ProfileStore, folder: Path, wanted: str) -> str:
    known = store.gpus()
    if not known:
        raise ProfileError(f"{folder}: holds no <gpu>/<op>.parquet")
    if wanted and wanted not in known:
        raise ProfileError(
            f"{folder}: no tables of {wanted!r}{nearest(wanted, known)}; has {', '.join(known)}"
        )
    if not wanted and len(known) > 1:
        raise ProfileError(f"{folder}: holds {', '.join(known)}; say which by --gpu")
    return wanted or known[0]


def _dtype(tables: dict[str, Any]) -> str:
    of = next(
        (table for table in (tables.get("gemm"), *tables.values()) if table and "dtype" in table.names), None
    )
    dtypes = of.values("dtype") if of else ["bf16"]
    return "bf16" if "bf16" in dtypes else str(dtypes[0])


def _rows(table: ProfileTable) -> int:
    return len(table) + table.dropped


def _outcome(line: dict[str, Any]) -> str:
    key = " ".join(f"{name}={value}" for name, value in line["key"].items())
    return f"{line['op']} {key}: {line['status']}, {line['why']}"


def _next(steps: dict[str, list[StepCoverage]], estimated: list[str], errors: list[HeldOut]) -> list[str]:
    """Return advice: kernels without measurement by their share of a step, then tables that predict badly."""
    shares: dict[str, float] = {}
    for found in steps.values():
        for step in found:
            for part in step.weakest:
                share = part.us / 1000 / step.ms
                if share >= WEAK_STEP:
                    words = f"{part.name} ({part.provenance})"
                    shares[words] = max(share, shares.get(words, 0.0))
    advice = [
        f"{words}: up to {share:.0%} of a step"
        for words, share in sorted(shares.items(), key=lambda it: -it[1])
    ]
    advice += [f"no table: {one}" for one in dict.fromkeys(estimated)]
    advice += [
        f"{one.op}: points around {one.worst}, predicted from the others with p95 {one.p95:.0%}"
        for one in errors
        if one.p95 > WEAK_TABLE
    ]
    return advice
