"""`profile check` finds planted faults, and nothing else; needs no torch and no measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.latency import ProfileStore
from simserve.latency.kernels.prefill import CachedPrompts
from simserve.latency.tables.profiles import ProfileTable
from simserve.profiler.checking.check import check_profile
from simserve.profiler.checking.rows import agreement, not_monotone, scattered
from simserve.profiler.journal import write_tables

FLOPS_PER_US, BYTES_PER_US, LAUNCH_US = 100e3, 20e3, 5.0


def product_us(n: int, k: int, m: int) -> float:
    """A machine that keeps to its roofline."""
    return LAUNCH_US + max(2 * n * k * m / FLOPS_PER_US, 4 * (n * k + m * (n + k)) / BYTES_PER_US)


def row(n: int, k: int, m: int, us: float, spread: float = 0.1) -> dict[str, Any]:
    key = {"dtype": "fp32", "n": n, "k": k, "m": m}
    times = {
        "latency_us": us,
        "n_samples": 9,
        "std_us": 0.1,
        "p10_us": us * (1 - spread),
        "p90_us": us * (1 + spread),
    }
    return {
        "case": json.dumps(key), "op": "gemm", "key": key, "extra": {}, "backend": "torch", "status": "ok",
        "backend_version": "1", "kernel": "k", "source": "simserve", "method": "wall", **times,
    }  # fmt: skip


def write(folder: Path, rows: list[dict[str, Any]]) -> ProfileTable:
    write_tables(folder / "lab", "lab", rows, [{"at": "2026-01-01", "device": "lab"}])
    figure = {"value": 1e12, "source": "test", "date": "2026"}
    machine = {
        "title": "lab", "sm_arch": 0, "gpus_per_node": 1, "hbm": {**figure, "value": 1e11},
        "hbm_bandwidth": {**figure, "value": BYTES_PER_US * 1e6},
        "peak": {"fp32": {**figure, "value": FLOPS_PER_US * 1e6}, "bf16": figure}, "pcie": figure,
    }  # fmt: skip
    (folder / "lab" / "gpu.json").write_text(json.dumps(machine))
    table = ProfileStore([folder], shipped=False).table("lab", "gemm")
    assert table is not None
    return table


SHAPES = [(n, k, 2**power) for n, k in ((1024, 512), (512, 2048)) for power in range(11)]


def test_a_clean_table_has_no_findings(tmp_path: Path) -> None:
    table = write(tmp_path, [row(*shape, product_us(*shape)) for shape in SHAPES])
    assert len(table) == len(SHAPES)
    assert scattered("gemm", table) == not_monotone("gemm", table) == []
    found = check_profile(tmp_path, "", [], 1, "")
    assert found.suspects == []
    (errors,) = found.held_out
    assert errors.points == 18
    assert errors.p95 < 0.1


def test_planted_faults_are_named(tmp_path: Path) -> None:
    rows = [row(*shape, product_us(*shape)) for shape in SHAPES]
    slow, fast, noisy = 6, 9, 15
    rows[slow] = row(*SHAPES[slow], 3 * product_us(*SHAPES[slow]))
    rows[fast] = row(*SHAPES[fast], 0.5 * product_us(*SHAPES[fast - 1]))
    rows[noisy] = row(*SHAPES[noisy], product_us(*SHAPES[noisy]), spread=0.4)
    write(tmp_path, rows)
    found = check_profile(tmp_path, "lab", [], 1, "")
    whys = {one.row: one.why for one in found.suspects}
    assert "spans 80% of the median" in whys["n=512 k=2048 m=16"]
    assert any("n=1024 k=512 m=512" in at and "of the time at m=256" in why for at, why in whys.items())
    assert any(at == "1024 x 512 x 64" and "its neighbours say" in why for at, why in whys.items())
    assert any(line.startswith("gemm fp32") for line in found.next)


def test_agreement_is_the_ratio_on_shared_shapes(tmp_path: Path) -> None:
    theirs = write(tmp_path / "a", [row(*shape, product_us(*shape)) for shape in SHAPES])
    ours = write(tmp_path / "b", [row(*shape, 1.25 * product_us(*shape)) for shape in SHAPES[::2]])
    found = agreement("gemm", ours, theirs)
    assert found is not None
    assert found.rows == len(SHAPES[::2])
    assert (found.p5, found.median, found.p95) == pytest.approx((1.25, 1.25, 1.25), rel=1e-5)


def test_what_is_not_timed_is_told(tmp_path: Path) -> None:
    rows = [row(*shape, product_us(*shape)) for shape in SHAPES]
    write(tmp_path, rows)
    lost = {**row(8, 8, 8, 1.0), "status": "oom", "why": "needs 9 GB"}
    (tmp_path / "lab" / "journal.jsonl").write_text(json.dumps(lost) + "\n")
    found = check_profile(tmp_path, "", [], 1, "")
    assert found.not_timed == ["gemm dtype=fp32 n=8 k=8 m=8: oom, needs 9 GB"]


def test_rows_that_a_killed_run_left_in_its_journal_come_first_in_what_to_do(tmp_path: Path) -> None:
    rows = [row(*shape, product_us(*shape)) for shape in SHAPES]
    write(tmp_path, rows[:-3])
    (tmp_path / "lab" / "journal.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = check_profile(tmp_path, "", [], 1, "")
    assert found.next[0] == "3 measured rows are not in the tables: the run was killed, --resume puts them in"
    write(tmp_path, rows)
    assert not any("--resume" in line for line in check_profile(tmp_path, "", [], 1, "").next)


def test_measured_prefixes_put_the_rule_right() -> None:
    """Measured points return what was measured; between them the correction is geometric."""

    def rule_us(batch: int, new: int, cached: int) -> float:
        return 10.0 + batch * new * (new + 2 * cached) / 1000

    points = [(1, new, cached) for new in (64, 256) for cached in (1024, 4096)]
    factors = [1.0, 4.0, 1.0, 4.0]
    columns = dict(zip(("batch", "q_len", "prefix_len"), np.array(points, np.int64).T, strict=True))
    columns["latency_us"] = np.array([f * rule_us(*p) for f, p in zip(factors, points, strict=True)])
    table = ProfileTable(Path("t"), columns, {"key_columns": ["batch", "q_len", "prefix_len"]}, 4)
    corrected = CachedPrompts(table, rule_us)
    for factor, point in zip(factors, points, strict=True):
        us, tag = corrected.correct(rule_us(*point), *point)
        assert us == pytest.approx(factor * rule_us(*point))
        assert tag == 0
    us, tag = corrected.correct(100.0, 1, 64, 2048)
    assert (us, tag) == (pytest.approx(200.0), 1)
    us, tag = corrected.correct(100.0, 1, 64, 65536)
    assert (us, tag) == (pytest.approx(400.0), 2)


def attention_row(op: str, us: float, **sweep: int) -> dict[str, Any]:
    heads = {"dtype": "fp32", "kv_dtype": "fp32", "q_heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0}
    return {**row(1, 1, 1, us), "op": op, "key": heads | sweep, "case": json.dumps([op, sweep])}


def test_rules_are_judged_by_what_was_measured(tmp_path: Path) -> None:
    """Decode takes 10 ns per context token, a prompt 1 ns per pair; planted calls are off by 2."""
    contexts, prompts = (64, 256, 1024), (64, 256, 1024)
    rows = [
        attention_row("attn_decode", b * c / 100, batch=b, kv_len=c) for b in (1, 4, 16) for c in contexts
    ]
    rows += [attention_row("attn_prefill", q * q / 1000, batch=1, prefix_len=0, q_len=q) for q in prompts]
    uneven = {"batch": 16, "long": 4, "ratio": 4, "kv_len": 256}
    rows.append(attention_row("attn_decode_uneven", 2 * 16 * 256 / 100, **uneven))
    mixed = {"batch": 4, "kv_len": 256, "prefix_len": 0, "q_len": 256}
    rows.append(attention_row("attn_mixed", 0.5 * (4 * 256 / 100 + 256**2 / 1000), **mixed))
    write(tmp_path, [row(*shape, product_us(*shape)) for shape in SHAPES] + rows)
    found = {one.rule: one for one in check_profile(tmp_path, "", [], 1, "").rules}
    assert set(found) == {"decodes of unequal lengths", "decodes beside a prompt"}
    assert found["decodes of unequal lengths"].ratio == pytest.approx(0.5, rel=1e-5)
    assert found["decodes beside a prompt"].ratio == pytest.approx(2.0, rel=1e-5)
    assert found["decodes beside a prompt"].median == pytest.approx(1.0, rel=1e-5)
