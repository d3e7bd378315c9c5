"""Published effects: the scenarios state what their sources say, and ours go the same way or say why not."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.paths import data_dir
from simserve.report.run.headline import FAR
from simserve.scenario import load_scenario
from tests.places import SHARED

EFFECTS = sorted(path.name for path in (data_dir("scenarios") / "effects").glob("*.yaml"))
PUBLISHED = "validation/published"
ASKED = {
    "static_vs_continuous",
    "chunked_prefill",
    "prefix_caching",
    "fp8_kv",
    "kv_plateau",
    "mla_bytes",
    "pd_mooncake_a10",
    "pd_distserve",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """Simulate an effect once; the folder, and what was printed."""
    done: dict[str, tuple[Path, str]] = {}

    def simulate(name: str) -> tuple[Path, str]:
        if name not in done:
            folder = tmp_path_factory.mktemp("effects") / "out"
            finished = CliRunner().invoke(app, ["run", f"scenarios/effects/{name}", "--out", str(folder)])
            assert finished.exit_code in (0, 3), finished.output  # 3: a saturated run has a growing queue
            done[name] = folder, finished.stdout
        return done[name]

    return simulate


def rows(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "compare.json").read_text())["published"]


def test_one_scenario_for_each_effect() -> None:
    assert {Path(name).stem for name in EFFECTS} >= ASKED


@pytest.mark.parametrize("name", EFFECTS)
def test_ours_is_near_or_says_why_not(run: Callable[..., tuple[Path, str]], name: str) -> None:
    folder, printed = run(name)
    found = rows(folder)
    assert len(found) == len(load_scenario(f"scenarios/effects/{name}").scenario.published) > 0
    for row in found:
        assert row["ours"] is not None, row["figure"]
        if abs(row["ratio"] - 1) > FAR:
            assert row["differs"], f"{row['figure']}: {row['ratio']:.2f} and no word about it"
    assert "Published figures" in printed


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_go_the_way_of_the_source(run: Callable[..., tuple[Path, str]], name: str) -> None:
    """A published ratio of 1.02 and more, or 0.98 and less, is on the same side of 1 here."""
    ratios = [row for row in rows(run(name)[0]) if row["unit"] == "ratio"]
    assert ratios
    for row in ratios:
        if abs(row["published"] - 1) >= 0.02:
            assert (row["ours"] > 1) == (row["published"] > 1), row["figure"]
        else:
            assert row["ours"] == pytest.approx(1, abs=0.06), row["figure"]


def test_bytes_of_the_kv_cache_are_exact(run: Callable[..., tuple[Path, str]]) -> None:
    for row in rows(run("mla_bytes.yaml")[0]):
        if row["unit"] == "bytes":
            assert row["ours"] == row["published"]


def test_the_page_shows_the_figures(run: Callable[..., tuple[Path, str]]) -> None:
    page = (run("fp8_kv.yaml")[0] / "report.html").read_text(encoding="utf-8")
    assert "Published figures" in page
    assert "vLLM blog, FP8 KV cache, tables 4 and 5" in page


TABLES = {
    "fp8_kv.yaml": "vllm_blog.csv",
    "kv_plateau.yaml": "nim_llm_benchmarking.csv",
    "prefix_caching.yaml": "issue_threads.csv",
    "pd_mooncake_a10.yaml": "mooncake_pd.csv",
}


@pytest.mark.reference(PUBLISHED)
@pytest.mark.parametrize("name", TABLES)
def test_figures_are_those_of_the_tables(name: str) -> None:
    """Absolute figures stand in the table of the source, and ratios are of two figures of one column."""
    with (SHARED / PUBLISHED / TABLES[name]).open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    columns = (
        "output_tok_s",
        "req_s",
        "ttft_ms_p50",
        "itl_ms_p50",
        "ttft_ms_mean",
        "ttft_ms_p99",
        "itl_ms_mean",
        "e2e_ms_mean",
    )
    values = {c: [float(row[c]) for row in table if row.get(c)] for c in columns}
    for one in load_scenario(f"scenarios/effects/{name}").scenario.published:
        if one.over is None:
            found = [v for column in values.values() for v in column]
            assert any(one.value == pytest.approx(v, rel=1e-3) for v in found), one.figure
        else:
            ratios = [a / b for column in values.values() for a in column for b in column]
            assert any(one.value == pytest.approx(ratio, rel=2e-3) for ratio in ratios), one.figure
