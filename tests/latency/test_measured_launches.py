"""Launches measured on a machine hold for every kind of step that is compiled for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import ProfileStore
from simserve.latency.afd import FfnGpus, compile_afd_latency
from simserve.latency.compile import compile_lockstep_latency, compile_step_latency
from simserve.latency.spec_decode import compile_speculative_latency, compile_verifying_latency
from simserve.latency.tables.profiles import ProfileTable, write_profile
from simserve.model import Parallelism, load_model

H200, MODEL = load_gpu("h200_sxm"), load_model("qwen3-30b-a3b")
ONE, TWO = Parallelism(), Parallelism(dp=2, ep=2)


@pytest.fixture
def profiles(tmp_path: Path) -> ProfileStore:
    """5 us for each kernel launched, 3 us for a graph."""
    counts = np.array([1, 100, 1, 100])
    kinds = np.array(["eager", "eager", "graph", "graph"], object)
    latency_us = np.array([5.0, 500.0, 8.0, 503.0])
    columns = {"kind": kinds, "kernels": counts, "latency_us": latency_us, "quality": np.zeros(4, np.uint8)}
    about = {"op": "launch", "key_columns": ["kind", "kernels"]}
    write_profile(tmp_path / H200.name / "launch.parquet", ProfileTable(tmp_path, columns, about, 4))
    return ProfileStore([tmp_path])


def test_measured_launches_hold_with_drafts_and_remote_experts_too(profiles: ProfileStore) -> None:
    plain = compile_step_latency(MODEL, H200, ONE, profiles=profiles, overhead=VLLM).overhead
    drafting = compile_verifying_latency(MODEL, H200, ONE, None, 2, profiles=profiles, overhead=VLLM).overhead
    group = compile_lockstep_latency(MODEL, H200, TWO, profiles=profiles, overhead=VLLM).overhead
    drafting_group = compile_speculative_latency(
        MODEL, H200, TWO, None, 2, profiles=profiles, overhead=VLLM
    ).overhead
    side = FfnGpus(H200, 2, 1, None)
    remote = compile_afd_latency(
        MODEL, H200, Parallelism(dp=2), side, profiles=profiles, overhead=VLLM
    ).overhead
    for overhead in (plain, drafting, group, drafting_group, remote):
        assert overhead.provenance["launch_layer_us"].startswith("measured: 5.0 us per kernel")
        assert overhead.provenance["step_us"].endswith("measured: 3.0 us to launch a CUDA graph")
    assert drafting.launch_layer_us == plain.launch_layer_us
    assert drafting_group.launch_layer_us == remote.launch_layer_us == group.launch_layer_us
