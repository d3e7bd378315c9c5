"""Remakes the tables of docs/fidelity.md: `make fidelity`, or `python -m benchmarks.fidelity [PART ...]`.

    golden      scheduling decisions against logs of the real schedulers
    measured    runs of vLLM, request by request
    published   rows of published results, one table of the source after the other
    effects     scenarios/effects against the figures that they cite

Measurements do not ship: they are looked for in ../shared/validation. What is not there is skipped, said so
at the end, and its tables in the page stay as they are. All parts take 8 minutes on two idle cores, half an
hour on busy ones.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from simserve.validation.page import effects_block, golden_block, replace_block

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "fidelity.md"
SHARED = ROOT.parent / "shared" / "validation"
OVERHEAD = "scenarios/overheads/vllm-0.15.yaml"
TABLES = (
    "llmservingsim_vllm_runs",
    "aiconfigurator_silicon",
    "vllm_blog",
    "inferencex_slo_sweeps",
    "trtllm_perf_overview",
    "nim_llm_benchmarking",
    "issue_threads",
    "infersim_validation",
    "mooncake_pd",
    "deepseek_sglang_large_ep",
)
"""Tables of published results; each has marks of its name in the page."""


class CommandFailed(Exception):
    """A command of ours did not end well; it has said why."""


def simserve(*args: str, ends: tuple[int, ...] = (0,)) -> str:
    """Run a command of ours and return its stdout; its progress goes to our stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "simserve", *args], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in ends:
        raise CommandFailed(f"simserve {' '.join(args)} ended with {done.returncode}")
    return done.stdout


def golden() -> list[str]:
    """Replay all logs; without the whole set, those that ship, and leave the page alone."""
    printed = simserve("validate", "golden", "tests/conformance", "--quiet")
    print(printed.splitlines()[-1])
    folder = SHARED / "engine_golden"
    if not folder.is_dir():
        return [f"the whole set of scheduling logs ({folder.name}); those in tests/conformance were replayed"]
    compared = dict(_replayed(folder))
    committed = {name for name, _ in _replayed(ROOT / "tests" / "conformance")}
    replace_block(PAGE, "golden", golden_block(compared, committed, printed))
    return []


def _replayed(folder: Path) -> list[tuple[str, tuple[int, int]]]:
    """Return `folder/workload` of each log, with its steps and equal steps."""
    facts = json.loads(simserve("validate", "golden", str(folder), "--json", "--quiet", ends=(0, 3)))
    return [
        (one["file"].removesuffix(".jsonl.gz"), (one["steps"], one["steps_equal"]))
        for one in facts["by_file"]
    ]


def measured() -> list[str]:
    """Replay measured runs."""
    folder = SHARED / "vllm_measured"
    if not folder.is_dir():
        return [f"measured runs ({folder.name})"]
    simserve("validate", "measured", str(folder), "--overhead", OVERHEAD, "--page", str(PAGE))
    return []


def published() -> list[str]:
    """Simulate the rows of published results."""
    skipped: list[str] = []
    failed: list[str] = []
    for name in TABLES:
        table = SHARED / "published" / f"{name}.csv"
        if not table.is_file():
            skipped.append(name)
            continue
        started = time.monotonic()
        print(f"  {name} ...", flush=True)
        try:
            simserve("validate", "published", str(table), "--page", str(PAGE))
        except CommandFailed as error:
            failed.append(str(error))
        print(f"  {name}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        raise CommandFailed("; ".join(failed))
    return [f"published results ({', '.join(skipped)})"] if skipped else []


def effects() -> list[str]:
    """Simulate the published effects."""
    found = {}
    for path in sorted((ROOT / "scenarios" / "effects").glob("*.yaml")):
        with tempfile.TemporaryDirectory() as scratch:
            out = Path(scratch) / "run"
            simserve("run", f"scenarios/effects/{path.name}", "--out", str(out), "--quiet", ends=(0, 3))
            found[path.stem] = json.loads((out / "compare.json").read_text())["published"]
        print(f"  {path.stem}: {len(found[path.stem])} figures", flush=True)
    replace_block(PAGE, "effects", effects_block(found))
    return []


PARTS: dict[str, Callable[[], list[str]]] = {
    "golden": golden,
    "measured": measured,
    "published": published,
    "effects": effects,
}


def main() -> None:
    """Run the parts that were named, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; default: all")
    wanted = parser.parse_args().part or list(PARTS)
    if unknown := [part for part in wanted if part not in PARTS]:
        sys.exit(f"no part {unknown[0]!r}; parts: {', '.join(PARTS)}")
    skipped: list[str] = []
    failed: list[str] = []
    for i, part in enumerate(wanted, 1):
        started = time.monotonic()
        print(f"[{i}/{len(wanted)}] {part} ...", flush=True)
        try:
            skipped += PARTS[part]()
        except CommandFailed as error:
            failed.append(f"{part}: {error}")
        print(f"[{i}/{len(wanted)}] {part}: {time.monotonic() - started:.0f} s", flush=True)
    for what in skipped:
        print(f"skipped, not in {SHARED.parent.name}/{SHARED.name} beside the repository: {what}")
    print(f"written: {PAGE.relative_to(ROOT)}")
    if failed:
        sys.exit("\n".join(f"failed, tables left as they were: {what}" for what in failed))


if __name__ == "__main__":
    main()
