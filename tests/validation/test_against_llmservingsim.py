"""vLLM 0.19 runs of LLMServingSim's bench, with its own layer times as kernel tables.

Nothing is fitted but one constant of the RTX 4090, to that run itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from simserve.latency.importing.llmservingsim import import_llmservingsim
from simserve.validation.published import read_rows, run_row
from tests.places import SHARED

TABLE = SHARED / "validation" / "published" / "llmservingsim_vllm_runs.csv"
FITTED = str(Path(__file__).parents[2] / "scenarios" / "overheads" / "vllm-0.19-rtx-4090.yaml")
LAYERS = SHARED / "kernel_profiles_extra" / "llmservingsim"

pytestmark = pytest.mark.reference(str(TABLE.relative_to(SHARED)), str(LAYERS.relative_to(SHARED)))


@pytest.fixture(scope="module")
def profiles(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("profiles")
    assert list(import_llmservingsim(LAYERS, folder, ["rtx_4090", "rtx_pro_6000"]))
    return str(folder)


@pytest.mark.parametrize(
    ("group", "overhead", "from_queue_ms"),  # the last as its source says it
    [
        ("RTX4090/Llama-3.1-8B", FITTED, 65456.6),
        ("RTXPRO6000/Llama-3.1-8B", None, 7097.2),
        ("RTXPRO6000/Qwen3-30B-A3B", None, 1086.0),
    ],
)
def test_runs_on_two_cards(group, overhead, from_queue_ms, profiles):
    (row,) = [row for row in read_rows(TABLE) if row["group"].startswith(group)]
    outcome = run_row(row, TABLE, overhead, [profiles])
    assert not outcome.reason
    assert outcome.metrics["ttft_from_queue_mean"].real == pytest.approx(from_queue_ms / 1000, abs=1e-4)
    errors = {name: abs(pair.error_pct) for name, pair in outcome.metrics.items()}
    assert errors["ttft_mean"] <= 10
    assert errors["tpot_mean"] <= 3
    assert errors["e2e_mean"] <= 3
