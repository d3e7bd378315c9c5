"""The traces that ship: made by their command, matched to their targets, described truly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.paths import data_dir
from simserve.workload import TraceStats, load_trace, stats, synthesize
from simserve.workload.synthetic.spec import PRESETS

TRACES = data_dir("traces")
TARGETS = {
    "chat": "azure_llm_2023_conv.csv.gz",
    "code": "azure_llm_2023_code.csv.gz",
    "long-context": "mooncake_fast25_conversation.jsonl.gz",
}


@pytest.mark.parametrize("name", PRESETS)
def test_the_command_makes_the_file(name: str, assert_same: Callable) -> None:
    preset = PRESETS[name]
    assert_same(synthesize(preset.spec, preset.seed), load_trace(TRACES / preset.file))


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in TRACES.iterdir()) < 1_500_000


@pytest.mark.parametrize("name", PRESETS)
def test_they_match_their_targets(name: str, public: Callable) -> None:
    ours, target = stats(load_trace(TRACES / PRESETS[name].file)), stats(public(TARGETS[name]))
    for a, b in ((ours.prompt_tokens, target.prompt_tokens), (ours.output_tokens, target.output_tokens)):
        assert a.mean == pytest.approx(b.mean, rel=0.02)
        for percentile in ("p50", "p90", "p95"):
            assert getattr(a, percentile) == pytest.approx(getattr(b, percentile), rel=0.04)
    assert ours.arrivals.rate_per_s == pytest.approx(target.arrivals.rate_per_s, rel=0.05)
    for a, b in zip(ours.arrivals.windows[1:], target.arrivals.windows[1:], strict=True):
        assert a.idc == pytest.approx(b.idc, rel=0.15)
    if name != "long-context":  # its target's stamps are quantised
        assert ours.arrivals.gap_cv == pytest.approx(target.arrivals.gap_cv, rel=0.03)
        assert ours.arrivals.windows[0].idc == pytest.approx(target.arrivals.windows[0].idc, rel=0.03)
    if target.prefix is not None:
        assert ours.prefix is not None
        assert ours.prefix.token_hit_rate == pytest.approx(target.prefix.token_hit_rate, abs=0.005)
        assert ours.prefix.requests_with_hit == ours.requests - 1


def test_no_run_of_rows_is_a_copy(public: Callable) -> None:
    """Single short rows coincide by chance; four in a row (prompts and outputs) would be copied."""
    for name, target in TARGETS.items():
        runs = []
        for trace in (load_trace(TRACES / PRESETS[name].file), public(target)):
            rows = list(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
            runs.append(set(zip(rows, rows[1:], rows[2:], rows[3:], strict=False)))
        assert not runs[0] & runs[1]


def test_the_readme_says_what_the_files_hold(public: Callable) -> None:
    sections = (TRACES / "README.md").read_text(encoding="utf-8").split("### ")[1:]
    assert len(sections) == len(PRESETS)
    for section in sections:
        name = next(key for key, preset in PRESETS.items() if section.startswith(preset.file))
        for column, trace in ((2, load_trace(TRACES / PRESETS[name].file)), (3, public(TARGETS[name]))):
            written = _cells(section, column)
            figures = _figures(stats(trace))
            assert figures.items() <= written.items()
            rest = set(written) - set(figures)
            assert all(key.startswith("token hit, LRU") for key in rest)


def _cells(section: str, column: int) -> dict[str, str]:
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    return {row[1].strip(): row[column].strip() for row in rows if row[1].strip() != "statistic"}


def _figures(found: TraceStats) -> dict[str, str]:
    figures = {}
    for name, lengths in (("prompt", found.prompt_tokens), ("output", found.output_tokens)):
        for key in ("mean", "p5", "p50", "p90", "p95", "p99", "max"):
            figures[f"{name} {key}"] = f"{getattr(lengths, key):,.0f}"
    arrivals = found.arrivals
    figures["requests"] = f"{found.requests:,}"
    figures["duration s"] = f"{arrivals.duration_s:,.0f}"
    figures["requests per s"] = f"{arrivals.rate_per_s:.2f}"
    figures["CV of gaps"] = f"{arrivals.gap_cv:.2f}"
    for window in arrivals.windows:
        figures[f"dispersion {window.window_s} s"] = f"{window.idc:.2f}"
        figures[f"peak {window.window_s} s"] = f"{window.peak:.2f}"
        figures[f"empty {window.window_s} s"] = f"{window.empty_share:.2f}"
    figures["minute autocorrelation"] = f"{arrivals.minute_autocorrelation:.2f}"
    figures["equal stamps"] = f"{arrivals.equal_stamps:,}"
    if found.prefix is not None:
        figures["token hit"] = f"{found.prefix.token_hit_rate:.4f}"
        figures["block hit"] = f"{found.prefix.block_hit_rate:.4f}"
        figures["requests with a hit"] = f"{found.prefix.requests_with_hit / found.requests:.4f}"
        figures["fully hit"] = f"{found.prefix.requests_fully_hit / found.requests:.4f}"
    return figures


def test_the_readme_names_every_file() -> None:
    text = Path(TRACES / "README.md").read_text(encoding="utf-8")
    for name, preset in PRESETS.items():
        assert f"simserve trace synth {name} traces/{preset.file}" in text
