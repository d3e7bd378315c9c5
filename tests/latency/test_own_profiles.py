"""What tables of our own profiler change, and what they leave as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.overheads import read_overhead
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.experts import contiguous
from simserve.experts.rank_load import RankMaximum
from simserve.latency import ProfileStore, explain_step
from simserve.latency.blocks.plan import AttentionLayers, GroupLayers, Plan, Setting
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts, expert_counts
from simserve.latency.kernels.gemm import elementwise, elementwise_if_measured
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import measured_mixes
from simserve.latency.kernels.mla import Latent, MlaDecode, latent_rows
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.moe import GatheredGroup, MoeLayers
from simserve.latency.overhead import IDEAL, measured_host_link, with_measured_launches
from simserve.latency.step_time import TableLatency
from simserve.latency.tables.profiles import ProfileTable, write_profile
from simserve.latency.tables.roofline import Cost, LinearOp, Peaks
from simserve.model.dtypes import weight_types
from simserve.model.layers import MlaAttention
from simserve.model.spec import Parallelism
from simserve.scenario.split_spec import KvTierSpec

PEAKS = Peaks({"bf16": 1e15}, 4e12, 450e9)
HEADS = {"dtype": "bf16", "kv_dtype": "bf16", "q_heads": 8, "kv_heads": 2, "head_dim": 128, "window": 0}


def write(folder: Path, op: str, keys: dict, **about) -> None:
    size = max(len(values) for values in keys.values() if isinstance(values, list))
    columns = {
        name: np.array(value if isinstance(value, list) else [value] * size, object if _text(value) else None)
        for name, value in keys.items()
    }
    columns["quality"] = np.zeros(size, np.uint8)
    path = folder / "lab" / f"{op}.parquet"
    names = [name for name in keys if name not in ("latency_us", "row_bytes")]
    write_profile(path, ProfileTable(path, columns, {"op": op, "key_columns": names, **about}, size))


def _text(value) -> bool:
    return isinstance(value[0] if isinstance(value, list) else value, str)


def machine(folder: Path) -> Machine:
    return Machine("lab", PEAKS, ProfileStore([folder], shipped=False), True, 90)


def attention(folder: Path, prefix: bool) -> PrefillAttention:
    lengths, prefixes = [128, 512, 2048, 512, 512], [0, 0, 0, 1024, 4096]
    times = [10.0, 40.0, 300.0, 111.0, 333.0]
    count = 5 if prefix else 3
    write(folder, "attn_prefill", {**HEADS, "batch": [1] * count, "prefix_len": prefixes[:count],
          "q_len": lengths[:count], "latency_us": times[:count]})  # fmt: skip
    write(folder, "attn_decode", {**HEADS, "batch": [1, 1], "kv_len": [128, 8192], "latency_us": [5.0, 9.0]})
    here = machine(folder)
    heads = Heads(8, 2, 128, 0, "bf16", "bf16")
    return PrefillAttention(here, heads, DecodeAttention(here, heads))


def test_measured_prefixes_are_returned_and_prompts_without_stay(tmp_path: Path) -> None:
    with_prefix, without = attention(tmp_path / "a", True), attention(tmp_path / "b", False)
    assert with_prefix.chunk_us(1, 512, 1024) == (pytest.approx(111.0), 0)
    assert with_prefix.chunk_us(1, 512, 4096) == (pytest.approx(333.0), 0)
    for length in (100, 512, 700, 2048):
        assert with_prefix.chunk_us(1, length, 0) == without.chunk_us(1, length, 0)
    between, tag = with_prefix.chunk_us(1, 512, 2048)
    assert 111 < between < 333
    assert tag == 1
    assert without.chunk_us(1, 512, 1024)[1] == 2


def test_elementwise_rows_replace_the_estimate(tmp_path: Path) -> None:
    keys = {"kind": "add_rmsnorm", "dtype": "bf16", "width": 4096, "written": 0}
    write(tmp_path, "elementwise", {**keys, "tokens": [1, 64], "row_bytes": 32768, "latency_us": [7.0, 9.0]})
    here = machine(tmp_path)
    cost = elementwise(here, "norm", 32768, "add_rmsnorm").cost(np.array([1.0, 64.0]))
    assert cost.us == pytest.approx([7.0, 9.0])
    assert cost.tags.tolist() == [0, 0]
    assert elementwise(here, "MLP activation", 32768, "silu_mul").cost(np.array([1.0])).tags.tolist() == [3]


def test_a_sum_that_engines_may_fuse_counts_where_it_was_measured(tmp_path: Path) -> None:
    keys = {"kind": "silu_mul", "dtype": "bf16", "width": 4096, "written": 0}
    write(tmp_path / "without", "elementwise", {**keys, "tokens": [1], "row_bytes": 1, "latency_us": [1.0]})
    assert elementwise_if_measured(machine(tmp_path / "without"), "shared expert sum", 24576, "add") == []
    keys = {"kind": "add", "dtype": "bf16", "width": 4096, "written": 0}
    write(tmp_path, "elementwise", {**keys, "tokens": [1, 64], "row_bytes": 24576, "latency_us": [3.0, 5.0]})
    (op,) = elementwise_if_measured(machine(tmp_path), "shared expert sum", 24576, "add")
    assert op.cost(np.array([1.0, 64.0])).us == pytest.approx([3.0, 5.0])


def expanded(folder: Path, **stages: float) -> MlaPrefill:
    sizes = {"kv_lora": 512, "rope": 64, "nope": 128, "v_dim": 128, "q_heads": 16}
    rows = [(stage, tokens, us) for stage, us in stages.items() for tokens in (1, 4096)]
    write(folder, "mla_bmm", {**sizes, "dtype": "bf16", "stage": [row[0] for row in rows],
          "tokens": [row[1] for row in rows], "latency_us": [row[2] for row in rows]})  # fmt: skip
    write(folder, "mla_prefill", {**sizes, "dtype": "bf16", "kv_dtype": "bf16", "batch": [1, 1],
          "prefix_len": [0, 0], "q_len": [1, 4096], "latency_us": [100.0, 100.0]})  # fmt: skip
    here = machine(folder)
    latent = Latent(MlaAttention(16, 0, 512, 128, 64, 128).core(1), "bf16")
    return MlaPrefill(here, latent, "bf16", MlaDecode(here, latent, "bf16"))


def test_keys_of_expanded_prompts_are_put_together_where_that_was_measured(tmp_path: Path) -> None:
    without = expanded(tmp_path / "a", pre=7.0, post=8.0)
    measured = expanded(tmp_path / "b", pre=7.0, post=8.0, keys=40.0)
    assert measured.chunk_us(1, 4096, 0)[0] - without.chunk_us(1, 4096, 0)[0] == pytest.approx(40.0)
    more = measured.fresh(1, np.array([4096.0])).us - without.fresh(1, np.array([4096.0])).us
    assert more == pytest.approx([40.0])


def test_uniform_routing_is_taken_as_measured(tmp_path: Path) -> None:
    keys = {
        "dtype": "bf16",
        "hidden": 1024,
        "inter": 512,
        "experts": 64,
        "topk": 4,
        "tp": 1,
        "ep": 1,
        "alpha": 0.0,
        "kernel": "k",
        "backend": "torch",
    }
    loads = ["balanced", "balanced", "uniform", "uniform"]
    times = [50.0, 90.0, 41.0, 88.0]
    write(tmp_path, "moe", {**keys, "load": loads, "tokens": [8, 64, 8, 64], "latency_us": times})
    experts = Experts(1024, 512, 64, 4, 1, 1, "bf16")
    for load, expected in (("uniform", [41.0, 88.0]), ("balanced", [50.0, 90.0])):
        cost = RoutedExperts(machine(tmp_path), experts, load).cost(np.array([8.0, 64.0]))
        assert cost.us == pytest.approx(expected)
        assert cost.tags.tolist() == [0, 0]


def test_latents_of_other_sizes_have_rows_of_their_own(tmp_path: Path) -> None:
    sizes = {"kv_lora": [512, 256], "rope": [64, 32], "nope": [128, 64], "v_dim": [128, 64]}
    keys = {"dtype": "bf16", "kv_dtype": "bf16", "q_heads": 16, **sizes, "batch": [1, 1], "kv_len": [64, 64]}
    write(tmp_path, "mla_decode", {**keys, "latency_us": [30.0, 11.0]})
    small = Latent(MlaAttention(16, 0, 256, 64, 32, 64).core(1), "bf16")
    rows, trust = latent_rows(machine(tmp_path), "mla_decode", small)
    assert rows is not None
    assert (rows.numbers("latency_us").tolist(), trust) == ([11.0], 0)


@pytest.mark.parametrize("rotating", [True, False])
def test_rotated_inputs_need_no_floor(tmp_path: Path, rotating: bool) -> None:
    """1000 us for 1 GB would be 1000 GB/s; a hundredth of the bytes at once is below that floor."""
    keys = {**HEADS, "batch": [1, 256], "kv_len": [1024, 4096]}
    write(tmp_path, "attn_decode", {**keys, "latency_us": [1.0, 1100.0]}, rotating_inputs=rotating)
    heads = Heads(8, 2, 128, 0, "bf16", "bf16")
    us = DecodeAttention(machine(tmp_path), heads).one_us(1, 1024)
    assert (us == pytest.approx(1.0)) is rotating


def mixed(folder: Path, measured_us: float) -> tuple[TableLatency, PrefillAttention]:
    """One layer of attention on a machine that prices decodes and chunks apart (Hopper)."""
    prefill = attention(folder, True)
    write(folder, "attn_mixed", {**HEADS, "batch": [4, 8], "kv_len": [1024, 1024], "prefix_len": [0, 0],
          "q_len": [512, 512], "latency_us": [measured_us, measured_us]})  # fmt: skip
    here = machine(folder)
    mixes = measured_mixes(here, prefill.heads, prefill.mixed_ruled_us)
    layers = AttentionLayers("attention", prefill.decode, prefill, 3, mixes)
    return TableLatency(Plan(attention=[layers], layers=3), IDEAL), prefill


def test_a_measured_mix_takes_what_was_measured(tmp_path: Path) -> None:
    latency, prefill = mixed(tmp_path, 77.0)
    chunk = [Chunk(Request(0, 0, 512, 1), 512, 0, False)]
    assert latency.step_ns(4, 4 * 1024, chunk) == pytest.approx(3 * 77_000, abs=2)
    booked = latency.step_provenance()
    assert booked["extrapolated"] == booked["analytic"] == 0
    assert sum(booked.values()) == pytest.approx(3 * 77_000, abs=2)
    parts = {part.name: part.us for part in explain_step(latency, 4, 4 * 1024, chunk)}
    assert sum(parts.values()) == pytest.approx(3 * 77.0, abs=0.01)
    # Half as many new tokens: the ratio of the edge, on what the rule says there.
    rule_us = prefill.mixed_ruled_us(4, 1024, 0, 256)
    ratio = 77.0 / prefill.mixed_ruled_us(4, 1024, 0, 512)
    half = [Chunk(Request(0, 0, 256, 1), 256, 0, False)]
    assert latency.step_ns(4, 4 * 1024, half) == pytest.approx(3000 * ratio * rule_us, abs=2)


def test_steps_without_decodes_or_chunks_do_not_read_the_mix(tmp_path: Path) -> None:
    latency, prefill = mixed(tmp_path, 77.0)
    chunk = [Chunk(Request(0, 0, 512, 1), 512, 0, False)]
    assert latency.step_ns(0, 0, chunk) == round(3000 * prefill.chunk_us(1, 512, 0)[0])
    assert latency.step_ns(4, 4 * 1024, []) == round(3000 * prefill.decode.one_us(4, 1024))


def launches(folder: Path, kinds: tuple[str, ...]) -> Machine:
    rows = {("eager", k): 1.0 + 4.0 * k for k in (1, 10, 100)} | {("graph", k): 7.0 + k for k in (1, 10, 100)}
    kept = {key: us for key, us in rows.items() if key[0] in kinds}
    kind, kernels = zip(*kept, strict=True)
    write(folder, "launch", {"kind": list(kind), "kernels": list(kernels), "latency_us": list(kept.values())})
    return machine(folder)


PLAN = Plan(
    per_token=[LinearOp("product", lambda tokens: Cost(tokens, tokens.astype(np.uint8)), 20)], layers=2
)


def test_measured_launches_replace_the_assumption(tmp_path: Path) -> None:
    """4 us per kernel and 10 kernels per layer; a graph of no kernels takes 7 us."""
    found = with_measured_launches(VLLM, launches(tmp_path, ("eager", "graph")), PLAN)
    assert found.launch_layer_us == pytest.approx(40.0)
    assert found.step_us == pytest.approx(VLLM.step_us + 7.0)
    assert found.provenance["launch_layer_us"] == "measured: 4.0 us per kernel, 10 kernels per layer"
    assert found.provenance["sequence_us"] == VLLM.provenance["sequence_us"]


def test_launches_change_nothing_without_graphs_nor_under_a_file_of_constants(tmp_path: Path) -> None:
    """A device without graphs was timed with its launches; calibrated constants hold them already."""
    assert with_measured_launches(VLLM, launches(tmp_path / "cpu", ("eager",)), PLAN) is VLLM
    gpu = launches(tmp_path / "gpu", ("eager", "graph"))
    (tmp_path / "mine.yaml").write_text("base: vllm\nlaunch_layer_us: 1.0\n")
    calibrated = read_overhead(tmp_path / "mine.yaml")
    assert with_measured_launches(calibrated, gpu, PLAN) is calibrated
    assert with_measured_launches(IDEAL, gpu, PLAN) is IDEAL


def test_the_host_link_is_what_the_largest_pinned_copies_reach(tmp_path: Path) -> None:
    write(tmp_path, "host_copy", {
        "direction": ["h2d", "h2d", "d2h", "h2d"], "pinned": [1, 1, 1, 0],
        "bytes": [1000, 1_000_000, 1_000_000, 1_000_000], "latency_us": [5.0, 20.0, 25.0, 90.0],
    })  # fmt: skip
    store = ProfileStore([tmp_path], shipped=False)
    link = measured_host_link(store, "lab")
    assert link == (50.0, 40.0, 5.0)
    assert measured_host_link(store, "other") is None
    tier = KvTierSpec(kind="cpu", capacity_gib=1.0)
    filled = tier.filled_in(2, 64e9, link)
    assert (filled.read_gb_s, filled.write_gb_s, filled.latency_us) == (50.0, 40.0, 5.0)
    own = KvTierSpec(kind="cpu", capacity_gib=1.0, read_gb_s=10.0).filled_in(2, 64e9, link)
    assert (own.read_gb_s, own.write_gb_s) == (10.0, 10.0)
    assert KvTierSpec(kind="ssd", capacity_gib=1.0).filled_in(2, 64e9, link).read_gb_s == 6.0


def counted(folder: Path, hot: float) -> Machine:
    """5 us, 1 us per expert, 0.1 us per pick; `hot` times as long if all tokens pick one expert."""
    rows = [
        (pattern, touched, tokens, factor * (5.0 + touched + 0.1 * 2 * tokens))
        for pattern, factor in (("even", 1.0), ("one hot", hot))
        for touched in (2, 8, 32)
        for tokens in (4, 8, 16, 32, 64, 128, 256)
    ]
    pattern, touched, tokens, us = (list(column) for column in zip(*rows, strict=True))
    shape = {"dtype": "bf16", "hidden": 1024, "inter": 512, "experts": 32, "topk": 2, "backend": "torch"}
    write(folder, "moe_counts", {**shape, "pattern": pattern, "touched": touched, "busiest": [1] * len(us),
          "tokens": tokens, "latency_us": us})  # fmt: skip
    return machine(folder)


EXPERTS = Experts(1024, 512, 32, 2, 1, 4, "bf16")


def test_experts_by_counts_return_what_was_measured(tmp_path: Path) -> None:
    counts = expert_counts(counted(tmp_path, 3.0), EXPERTS)
    assert counts is not None
    picks, touched = np.array([64.0, 64.0, 64.0, 0.0]), np.array([8.0, 8.0, 8.0, 0.0])
    # All alike; one picked by each of the 32 tokens; one in the geometric middle; no pick at all.
    us = counts.us(picks, touched, np.array([8.0, 32.0, 16.0, 0.0]))
    assert us == pytest.approx([19.4, 3 * 19.4, 3**0.5 * 19.4, 0.0])
    assert expert_counts(machine(tmp_path / "none"), EXPERTS) is None
    assert expert_counts(counted(tmp_path, 3.0), replace(EXPERTS, inter=256)) is None


def test_the_slowest_rank_is_the_one_with_most_to_read_not_the_one_with_most_picks(tmp_path: Path) -> None:
    """Two ranks of 4 experts: one gets 240 picks of one expert, the other 80 over its four.

    At 10 us per expert and 0.01 us per pick the second takes longer, which gamma does not see.
    """

    def counted_us(picks, touched, busiest):
        return 10.0 * touched + 0.01 * picks

    shares = np.array([[0.75, 0, 0, 0, 0.0625, 0.0625, 0.0625, 0.0625]])
    maximum = RankMaximum(shares, contiguous(1, 8, 2), samples=200)

    def even_us(tokens):
        return 10.0 * 4 + 0.01 * tokens / 2

    found = maximum.mean_us(256, even_us, "k", counted_us)
    assert found == pytest.approx(10 * 4 + 0.01 * 64, rel=0.01)
    plain = maximum.mean_us(256, even_us, "plain")
    assert plain == pytest.approx(10 * 4 + 0.01 * 192, rel=0.01)


def test_a_group_reads_the_counts(tmp_path: Path) -> None:
    """The same step with and without the table: only what the ranks' experts take differs."""
    durations = {}
    for name, here in (("with", counted(tmp_path / "with", 1.0)), ("without", machine(tmp_path / "without"))):
        setting = Setting(
            here, 1024, Parallelism(dp=4, ep=4), weight_types("bf16"), "bf16", "uniform", 8, True
        )
        kernels = GatheredGroup(setting, EXPERTS)
        layers = MoeLayers([GroupLayers(kernels, [], [], 0.0, 1)], 4, 0.0)
        maximum = RankMaximum(np.full((1, 32), 2 / 32), contiguous(1, 32, 4), samples=50)
        durations[name] = layers.parts(np.zeros(1, np.int64), 64, 256, maximum, True).experts
    # 256 tokens: 512 picks, 128 a rank and some more on the busiest, of its 8 experts.
    assert durations["with"] == pytest.approx(1000 * (5 + 8 + 0.1 * 128), rel=0.1)
    assert durations["without"] != durations["with"]
