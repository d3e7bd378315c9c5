"""The products of a step are the weights that memory counts: every preset, split and dtype."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.blocks.moe import experts_of
from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.compile import distinct_plans, setting_of
from simserve.latency.kernels.mla import MlaDecode
from simserve.latency.tables.roofline import BYTES
from simserve.model import Parallelism, load_model, preset_names
from simserve.model.layers import GqaAttention, LinearAttention, MlaAttention, MoeFfn
from simserve.model.layers.base import Block, Shard
from simserve.model.layers.moe import ROUTED
from simserve.model.params import flops_per_token
from simserve.model.parts import head_part, layer_parts
from simserve.model.spec import LayerGroup, ModelSpec
from simserve.model.weights import weight_bytes_per_stage

H100 = load_gpu("h100_sxm")
GRIDS: dict[tuple[Any, ...], Any] = {}
"""Those of the GPU, built once."""
TENSOR = [Parallelism(tp=tp) for tp in (1, 2, 4, 8)]
EXPERT = [Parallelism(tp=4, ep=4), Parallelism(dp=4, ep=4), Parallelism(tp=2, dp=2)]
DTYPES = [
    ("bf16", None),
    ("fp8", None),
    ("fp8_block", None),
    ("bf16", "mxfp4"),
    ("nvfp4", None),
    ("fp32", None),
]


def plans(spec: ModelSpec, split: Parallelism, dtypes: tuple[str, str | None], lockstep: bool) -> list[Plan]:
    setting = settled(spec, split, dtypes, lockstep)
    return distinct_plans(spec, setting)


def settled(spec: ModelSpec, split: Parallelism, dtypes: tuple[str, str | None], lockstep: bool) -> Setting:
    found = setting_of(spec, H100, split, weights_dtype=dtypes[0], experts_dtype=dtypes[1], lockstep=lockstep)
    return replace(found, machine=replace(found.machine, cache=GRIDS))


def product_bytes(plan: Plan) -> float:
    return sum(times * it.params * BYTES[it.dtype] for times, it in plan.weights())


def stored_bytes(spec: ModelSpec, split: Parallelism, dtypes: tuple[str, str | None]) -> float:
    """What memory holds of all stages, without what no product reads: embedding, norms, biases, images."""
    stages = weight_bytes_per_stage(spec, split, dtypes[0], experts_dtype=dtypes[1])
    plain = 4.0 if dtypes[0] == "fp32" else 2.0
    total = sum(stage.total - stage.vision for stage in stages)
    embedding = plain * head_part(spec).local(split.tp)[0] * spec.hidden_size
    tied_twice = spec.tie_word_embeddings and split.pp == 1
    total -= 0 if tied_twice else embedding
    if spec.learned_positions:
        total -= plain * spec.learned_positions * spec.hidden_size
    total -= plain * spec.hidden_size  # the last norm
    for group in spec.layers:
        for part in layer_parts(group, spec.hidden_size):
            if not part.matmul:
                rows, columns = part.local(split.tp)
                spread = part.copies / (split.tp * split.dp) if part.split == "experts" else 1
                total -= plain * group.count * rows * columns * spread
    return total


def allowed(spec: ModelSpec, split: Parallelism) -> bool:
    try:
        weight_bytes_per_stage(spec, split, "bf16")
    except ScenarioError:
        return False
    return True


@pytest.mark.parametrize("name", preset_names())
def test_the_products_of_a_step_are_the_weights(name: str) -> None:
    spec = load_model(name)
    assert allowed(spec, TENSOR[0])
    cases = [(split, dtypes) for split in TENSOR for dtypes in DTYPES]
    cases += [
        (split, DTYPES[place]) for number, split in enumerate(EXPERT) for place in (number, -1 - number)
    ]
    for split, dtypes in cases:
        if allowed(spec, split):
            (plan,) = plans(spec, split, dtypes, lockstep=split.dp > 1)
            expected = stored_bytes(spec, split, dtypes)
            assert product_bytes(plan) == pytest.approx(expected, rel=1e-7), (split, dtypes)


@pytest.mark.parametrize("name", ["llama-3.1-70b", "deepseek-v3", "llama-4-maverick", "gpt-3-175b"])
@pytest.mark.parametrize("pp", [2, 3, 5])
def test_the_stages_of_a_pipeline_compute_with_the_weights_that_they_hold(name: str, pp: int) -> None:
    spec, split = load_model(name), Parallelism(pp=pp)
    stages = weight_bytes_per_stage(spec, split, "bf16")
    expected = {round(it.total - it.plain - it.embedding_and_head - it.vision) for it in stages[:-1]}
    expected |= {round(it.total - it.plain - it.embedding_and_head - it.vision) for it in stages[-1:]}
    found = set()
    for plan in plans(spec, split, ("bf16", None), False):
        names = [op for op in plan.per_token if op.name == "router gate"] + plan.per_sequence
        small = sum(op.times * op.weights.params for op in names if op.weights)
        found.add(round(product_bytes(plan) - 2 * small))
    assert found == expected


@pytest.mark.parametrize("name", preset_names())
def test_flops_of_the_products_are_two_per_active_weight(name: str) -> None:
    spec = load_model(name)
    (plan,) = plans(spec, Parallelism(), ("bf16", None), False)
    ops = [(op.times, op) for op in (*plan.per_token, *plan.per_sequence)]
    ops += [(layers.times, op) for layers in plan.attention for op in layers.products]
    every = sum(2 * times * op.weights.params for times, op in ops if op.weights and op.name != ROUTED)
    # the state of linear attention, 6 FLOPs an element, is no product
    states = sum(
        6 * group.count * it.num_attention_heads * it.head_dim**2
        for group in spec.layers
        for it in group.attentions
        if isinstance(it, LinearAttention)
    )
    assert every + expert_flops(spec) == pytest.approx(flops_per_token(spec) - states, rel=1e-9)


def expert_flops(spec: ModelSpec) -> float:
    """What the kernels of routed experts take for a token, by the work that their efficiency rests on."""
    setting = settled(spec, Parallelism(), ("bf16", None), False)
    return sum(
        group.count * float(experts_of(ffn, setting).work(np.array([1000.0]), evenly=True)[0][0]) / 1000
        for group in spec.layers
        for ffn in group.ffns
        if isinstance(ffn, MoeFfn)
    )


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-5", "longcat-flash"])
def test_both_forms_of_latent_attention_multiply_with_the_same_matrix(name: str) -> None:
    (plan,) = plans(load_model(name), Parallelism(tp=4), ("bf16", None), False)
    for layers in plan.attention:
        assert isinstance(layers.decode, MlaDecode)
        absorbed = sum(op.weights.params for op in layers.decode.products if op.weights)
        assert absorbed == sum(op.weights.params for op in layers.products if op.weights)


def test_a_part_that_the_plan_forgets_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GqaAttention.block

    def without_gate(attention: GqaAttention, at: Shard) -> Block:
        return whole(replace(attention, output_gate=False), at)

    spec, dtypes = load_model("qwen3.5-397b-a17b"), ("bf16", None)
    expected = stored_bytes(spec, Parallelism(), dtypes)
    monkeypatch.setattr(GqaAttention, "block", without_gate)
    (plan,) = plans(spec, Parallelism(), dtypes, False)
    # 15 full layers of 32 heads of 256 on a width of 4096
    assert expected - product_bytes(plan) == pytest.approx(15 * 32 * 256 * 4096 * 2, rel=1e-6)


def test_the_output_gate_of_qwen35_takes_time() -> None:
    spec = load_model("qwen3.5-397b-a17b")
    plain = replace(spec, layers=tuple(_without_gate(group) for group in spec.layers))
    times = [
        compile_step_latency(it, H100, Parallelism(tp=8), overhead=VLLM).step_ns(8192, 8192 * 10, ())
        for it in (spec, plain)
    ]
    # 15 layers x 8192 tokens x 4096 x 1024 outputs more: 2 FLOPs each at no more than 989 TFLOP/s
    assert times[0] - times[1] > 15 * 2 * 8192 * 4096 * 1024 / 989e12 * 1e9


def _without_gate(group: LayerGroup) -> LayerGroup:
    (attention,) = group.attentions
    gated = isinstance(attention, GqaAttention)
    return replace(group, attentions=(replace(attention, output_gate=False),)) if gated else group


def test_index_heads_of_glm5_are_priced_as_they_are() -> None:
    # 32 heads of 128: half of DeepSeek-V3.2's 64, so half of the products and of the scores
    spec = load_model("glm-5")
    (attention,) = spec.layers[0].attentions
    assert isinstance(attention, MlaAttention)
    assert (attention.index_n_heads, attention.index_head_dim) == (32, 128)
    doubled = replace(spec, layers=tuple(_with_index_heads(group, 64) for group in spec.layers))
    latencies = [compile_step_latency(it, H100, Parallelism(tp=8), overhead=VLLM) for it in (spec, doubled)]
    chunk = Chunk(Request(0, 0, 67584, 1), 2048, 65536, last=False)
    few, many = (it.step_ns(0, 0, (chunk,)) for it in latencies)
    pairs = 2048 * (65536 + 1024.5) * 78  # of all layers
    scores_ns = pairs * 2 * 32 * 128 / (0.67 * 1979e12) * 1e9
    products_ns = 78 * 2 * 2048 * 2048 * 32 * 128 / 989e12 * 1e9  # from the query's rank of 2048
    assert scores_ns + products_ns < many - few < scores_ns + 3 * products_ns


def _with_index_heads(group: LayerGroup, heads: int) -> LayerGroup:
    (attention,) = group.attentions
    assert isinstance(attention, MlaAttention)
    return replace(group, attentions=(replace(attention, index_n_heads=heads),))
