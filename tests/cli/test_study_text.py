"""What studies print: tables that fit a terminal, and the answer of a size that stays on the screen."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.cli import texts
from simserve.cli.texts import print_size, print_sweep

PATHS = [
    "pools.0.gpu",
    "pools.0.tp",
    "pools.0.replicas",
    "engine.max_num_batched_tokens",
    "engine.max_num_seqs",
]


def point(slo: str, share: float) -> dict[str, Any]:
    means = {"ttft_ms.p99": 127380.2, "tpot_ms.p50": 39.23, "output_tokens_per_s": 1405.1}
    return {
        "status": "done",
        "settings": dict(zip(PATHS, ("h100_sxm", 16, 4, 13482, 351), strict=True)),
        "means": means | {"cost_per_million_output_tokens": 31.62},
        "slo": slo,
        "targets": [{"estimate": share}],
    }


def test_five_settings_and_five_numbers_stand_in_80_columns_unbroken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PLAIN_WIDTH", 80)
    print_sweep(
        {
            "name": "Wide",
            "currency": "$",
            "paths": PATHS,
            "points": [point("missed", 0.62), point("met", 1.0)],
        }
    )
    lines = capsys.readouterr().out.splitlines()
    row = ["h100_sxm", "16", "4", "13482", "351", "127,380", "39.2", "1,405", "$31.62"]
    assert [line.split() for line in lines[-2:]] == [
        [*row, "missed", "62", "%"],
        [*row, "met", "100", "%"],
    ]
    assert max(map(len, lines)) <= 80


def test_the_answer_of_a_size_is_not_pushed_off_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    pools = [{"name": "all", "gpu": "h100_sxm", "gpu_name": "H100 SXM", "replicas": 2, "tp": 1}]
    missed = {"price_per_hour": 5.0, "gpus": 2, "pools": pools, "settings": {}, "shortfall": "late"}
    study = {
        "currency": "$",
        "feasible": [],
        "missed": [missed] * 40,
        "impossible": [{"words": "l40s, tp 1", "because": "no room"}] * 5,
        "targets": [{"words": "TTFT"}],
        "work": {"simulated": 1, "deployments": 2, "stopped_early": 0, "simulated_requests": 3},
    }
    print_size(study)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    assert "misses: 37 more, all in the report" in lines
    assert "infeasible: 2 more, all in the report" in lines
