"""Pools whose FFN layers have GPUs of their own: memory, money, what limits them, and what they refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.deploy.build import build
from simserve.deploy.manifest import manifest_of, resolved_yaml
from simserve.errors import ScenarioError
from simserve.scenario import load_scenario
from simserve.units import GB
from tests.laws.checkers import all_laws, results_agree

Write = Callable[..., Path]

QWEN = """\
name: apart
model: qwen3-30b-a3b
engine: {preset: vllm-0.33, max_num_seqs: 64}
workload:
  synthetic:
    requests: 300
    arrivals: {kind: poisson, rate_per_s: 400}
    prompt_tokens: {kind: lognormal, p50: 200, p90: 600}
    output_tokens: {kind: lognormal, p50: 30, p90: 80}
pools:
  - name: decode
    gpu: h200_sxm
    dp: 3
    replicas: 2
    price_per_gpu_hour: 2
    afd: {ffn_gpus: 2, gpu: h100_sxm, price_per_gpu_hour: 5}
router: least_outstanding_tokens
seed: 3
"""


def built(write: Write, *replacements: tuple[str, str]):
    return build(load_scenario(write(*replacements, text=QWEN)))


@pytest.mark.parametrize("load", ["uniform", "{kind: zipf, s: 1.0, drift: {every_s: 0.2, share: 0.3}}"])
def test_fast_forward_is_stepping_and_all_laws_hold(scenario_file: Write, load: str) -> None:
    more = ("dp: 3", f"dp: 3\n    expert_load: {load}")
    fast = built(scenario_file, more)
    result = fast.simulate()
    all_laws(result, fast.trace, fast.pools[0].limit.tokens)
    stepped = built(scenario_file, more, ("seed: 3", "seed: 3\nfast_forward: false"))
    results_agree(result, stepped.simulate())


def test_each_side_holds_its_own_weights(scenario_file: Write) -> None:
    """Qwen3-30B-A3B in bf16: 128 experts of 3 x 2048 x 768 in 48 layers, half of them on each FFN GPU."""
    (pool,) = built(scenario_file).pools
    assert pool.ffn is not None
    held = {line.name: line.bytes for line in pool.ffn.ledger}
    assert held["routed expert weights"] == 48 * 64 * 3 * 2048 * 768 * 2
    assert sum(held.values()) == pool.ffn.gpu.hbm_bytes
    names = {line.name for line in pool.ledger.lines}
    assert "KV cache" in names
    assert "KV cache" not in held
    assert not names & {"routed expert weights", "dense MLP weights", "shared expert weights"}
    together = built(scenario_file, ("    afd: {ffn_gpus: 2, gpu: h100_sxm, price_per_gpu_hour: 5}\n", ""))
    assert pool.kv_blocks > together.pools[0].kv_blocks


def test_gpus_of_both_sides_cost_and_count(scenario_file: Write) -> None:
    deployment = built(scenario_file)
    summary = deployment.summarize(deployment.simulate())
    (pool,) = summary.pools
    assert pool.gpus == 2 * (3 + 2)
    assert summary.price_per_hour == 2 * (3 * 2 + 2 * 5)
    together = built(scenario_file, ("    afd: {ffn_gpus: 2, gpu: h100_sxm, price_per_gpu_hour: 5}\n", ""))
    alone = together.summarize(together.simulate())
    # The same work on 4 FFN GPUs more (of 6): peaks of both kinds are equal.
    seconds = summary.whole.duration_s, alone.whole.duration_s
    assert pool.mfu is not None
    assert alone.pools[0].mfu is not None
    assert seconds[0]
    assert seconds[1]
    assert pool.mfu * seconds[0] * 10 == pytest.approx(alone.pools[0].mfu * seconds[1] * 6)


def test_the_report_says_which_side_limits(scenario_file: Write) -> None:
    deployment = built(scenario_file, ("rate_per_s: 400", "rate_per_s: 4000"))
    summary = deployment.summarize(deployment.simulate())
    for group in summary.groups:
        assert group.ffn_gpus == 2
        assert list(group.sides) == ["attention side", "FFN side", "network"]
        assert all(0 < share < 1 for share in group.sides.values())
    (limit,) = summary.limits
    busiest = {max(group.sides, key=group.sides.__getitem__) for group in summary.groups}
    assert busiest == {"FFN side"}
    assert limit.step == "FFN side"


def test_a_slow_network_limits(scenario_file: Write) -> None:
    slow = ("ffn_gpus: 2,", "ffn_gpus: 2, network_gb_s: 0.2,")
    deployment = built(scenario_file, ("rate_per_s: 400", "rate_per_s: 4000"), slow)
    (limit,) = deployment.summarize(deployment.simulate()).limits
    assert limit.resource == "network"


def test_the_resolved_scenario_gives_the_same(scenario_file: Write, tmp_path: Path) -> None:
    first = built(scenario_file)
    again = tmp_path / "again.yaml"
    again.write_text(resolved_yaml(first), encoding="utf-8")
    second = build(load_scenario(again))
    assert resolved_yaml(second) == resolved_yaml(first)
    assert second.pools[0].spec.afd == first.pools[0].spec.afd


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "dp: 3",
            "dp: 4\n    ep: 4",
            r"ep = 4 cannot be combined with afd: experts spread over afd\.ffn_gpus",
        ),
        ("dp: 3", "dp: 3\n    pp: 2", r"pp = 2 cannot be combined with afd"),
        ("dp: 3", "dp: 3\n    all2all: nccl", r"all2all = nccl .*afd\.exchange"),
        ("dp: 3", "dp: 3\n    overlap: {two_batch: true}", r"overlap cannot be combined .*afd\.microbatches"),
        ("    price_per_gpu_hour: 2\n", "", r"afd\.price_per_gpu_hour = 5 needs price_per_gpu_hour of the"),
        (
            "ffn_gpus: 2",
            "ffn_gpus: 3",
            r"afd\.ffn_gpus = 3 is not possible: .* does not divide the 128 experts",
        ),
        ("gpu: h100_sxm", "gpu: h101_sxm", r"unknown GPU 'h101_sxm' \(did you mean 'h100_sxm'\?\)"),
        ("ffn_gpus: 2", "ffn_gpu: 2", r"unknown key 'ffn_gpu' .*did you mean 'ffn_gpus'"),
        ("qwen3-30b-a3b", "llama-3.1-8b", r"afd is not possible: llama-3\.1-8b has no experts"),
        ("qwen3-30b-a3b", "longcat-flash", r"have 2 attentions and 3 feed-forward blocks"),
        (
            "qwen3-30b-a3b",
            "qwen3-235b-a22b",
            r"afd\.ffn_gpus = 2 is too few: .* needs \d+\.\d GB on each FFN GPU",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    scenario_file: Write, old: str, new: str, message: str
) -> None:
    with pytest.raises(ScenarioError, match=message) as raised:
        built(scenario_file, (old, new))
    assert "small.yaml:" in str(raised.value)


def test_ffn_gpus_are_named_beside_the_others(scenario_file: Write) -> None:
    (pool,) = manifest_of(built(scenario_file), "run")["pools"]
    assert pool["ffn"]["gpus"] == 2
    assert "H100" in pool["ffn"]["gpu_name"]
    free = next(line for line in pool["ffn"]["ledger"] if line["name"] == "free")
    assert free["bytes"] > 40 * GB


def test_the_page_shows_each_side_under_its_name(scenario_file: Write, tmp_path: Path) -> None:
    path = scenario_file(text=QWEN)
    done = CliRunner().invoke(app, ["run", str(path), "--out", str(tmp_path / "out"), "--quiet"])
    assert done.exit_code == 3, "it is too short to tell whether the load is carried"
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    table = page[page.index("attention side works") :]
    row = table[table.index("decode-0") : table.index("decode-1")]
    shown = [float(text) for text in re.findall(r"<td>([\d.]+)\s*%</td>", row)]
    sides = summary["groups"][0]["sides"]
    wanted = [sides[name] for name in ("attention side", "FFN side", "network")]
    assert shown[::2] == pytest.approx([100 * share for share in wanted], abs=0.06)
    assert shown[1::2] == pytest.approx([100 - 100 * share for share in wanted], abs=0.06)
