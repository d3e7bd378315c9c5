"""Everything that `simserve profile check` says, as plain figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError, nearest
from simserve.hardware import load_gpu
from simserve.latency.profile_file import ProfileTable
from simserve.latency.profiles import ProfileStore, shipped_profiles
from simserve.model.load import load_model
from simserve.model.parallel import Parallelism
from simserve.profiler.checking.coverage import StepCoverage, coverage
from simserve.profiler.checking.held_out import HeldOut, held_out
from simserve.profiler.checking.rows import (
    Agreement,
    Suspect,
    agreement,
    not_monotone,
    scattered,
)
from simserve.profiler.checking.rules import RuleError, rule_errors
from simserve.profiler.journal import NAME, read_journal

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
