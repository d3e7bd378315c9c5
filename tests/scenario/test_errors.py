"""Wrong scenarios: one line per problem, with the file, the line, the value found and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from simserve.deploy.build import build
from simserve.errors import UserError, nearest
from simserve.scenario import load_scenario

Write = Callable[..., Path]

CASES = [
    # (old text, new text, line, words that the message must hold)
    ("seed: 3", "sede: 3", 14, ["sede", "3", "did you mean 'seed'"]),
    ("seed: 3", "seed: three", 14, ["seed", "'three'", "integer"]),
    ("seed: 3", "seed: 3.5", 14, ["3.5", "integer"]),
    ("seed: 3", "seed: true", 14, ["True", "integer"]),
    ("seed: 3", "seed: -1", 14, ["-1", "greater than or equal to 0"]),
    ("model: llama-3.1-8b", "model: llama-3.1-8c", 2, ["llama-3.1-8c", "did you mean 'llama-3.1-8b'"]),
    ("model: llama-3.1-8b", "model: nowhere/config.json", 2, ["nowhere/config.json"]),
    ("model: llama-3.1-8b", "model: llama-3.1-405b", 11, ["llama-3.1-405b does not fit", "tp"]),
    ("engine: vllm-0.33", "engine: vllm-0.34", 3, ["vllm-0.34", "did you mean 'vllm-0.33'"]),
    ("engine: vllm-0.33", "engine: {preset: vllm-0.33, max_seqs: 4}", 3, ["max_seqs", "'max_num_seqs'"]),
    ("engine: vllm-0.33", "engine: {preset: vllm-0.33, max_num_seqs: 0}", 3, ["max_num_seqs", "found 0"]),
    ("engine: vllm-0.33", "engine: {preset: vllm-0.33, version: '0.19'}", 3, ["'0.19'", "'0.33'"]),
    ("engine: vllm-0.33", "engine: {policy: statik}", 3, ["statik", "did you mean 'static'"]),
    ("engine: vllm-0.33", "engine: {policy: nowhere.at.all:Policy}", 3, ["nowhere.at.all:Policy"]),
    ("engine: vllm-0.33", "engine: {preset: vllm-0.33, overhead: vlm}", 3, ["overhead", "'vlm'", "'vllm'"]),
    ("engine: vllm-0.33", "engine: {block_size: 16}", 1, ["engine", "preset"]),
    ("gpu: h100_sxm", "gpu: h100", 12, ["'h100'", "h100_sxm"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: '2'", 13, ["pools[0].tp", "'2'", "integer without quotes"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: 3", 13, ["pools[0].tp", "tp = 3", "32 attention heads"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: 3", 13, ["allowed: 1, 2, 4, 8, 16, 32"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    tp: 2\n    ep: 3", 14, ["ep = 3", "allowed: 1, 2"]),
    (
        "gpu: h100_sxm",
        "gpu: h100_sxm\n    all2all: nccl",
        13,
        ["pools[0].all2all = nccl is not possible", "no experts"],
    ),
    (
        "gpu: h100_sxm",
        "gpu: h100_sxm\n    expert_load: {kind: zipf, s: 1}",
        13,
        ["pools[0].expert_load is not possible: llama-3.1-8b has no experts"],
    ),
    ("name: all", "name: a b", 11, ["pools[0].name: found 'a b', allowed: letters"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    weights_dtype: fp9", 13, ["fp9", "did you mean 'fp8'"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    max_model_len: 200000", 13, ["200,000", "131,072"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    role: decode", 13, ["role = decode", "no pool", "prefill"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    role: both", 13, ["role", "'both'", "'mixed'"]),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    engine: {watermark: 2}", 13, ["pools[0].engine.watermark", "2"]),
    ("gpu: h100_sxm", "replicas: 2", 11, ["pools[0].gpu", "required"]),
    ("ttft_ms: 500", "ttft_ms: .nan", 13, ["slo.ttft_ms", "nan", "finite"]),
    ("ttft_ms: 500", "tftt_ms: 500", 13, ["tftt_ms", "did you mean 'ttft_ms'"]),
    ("rate_per_s: 8", "rate: 8", 7, ["workload.synthetic.arrivals.rate", "'rate_per_s'"]),
    ("kind: poisson", "kind: poison", 7, ["arrivals.kind: found 'poison', allowed: 'poisson', "]),
    ("kind: poisson", "kind: poison", 7, ["'constant' or 'bursts' (did you mean 'poisson'?)"]),
    ("kind: poisson, ", "", 7, ["arrivals.kind: is required and missing; allowed: poisson, gamma"]),
    ("seed: 3", "router: {kind: random, sed: 3}", 14, ["router.sed", "allowed: kind"]),
    ("seed: 3", "router: [random]", 14, ["router: found ['random'], allowed: a router's name, or a mapping"]),
    ("engine: vllm-0.33", "engine: 0.33", 3, ["engine: found 0.33, allowed: an engine's name, or a mapping"]),
    ("seed: 3", "compare: {a b: {seed: 4}}", 14, ["compare.a b: found 'a b', allowed: up to 64 letters"]),
    ("ttft_ms: 500", "percentiles: {ttft_ms: {'95': 9}}", 13, ["found '95', allowed: 'p' and a percentage"]),
    ("seed: 3", "router: roundrobin", 14, ["roundrobin", "did you mean 'round_robin'"]),
    ("seed: 3", "workload: {trace: x, rate_scale: 1.0e-9}", 14, ["duplicate key", "workload"]),
    ("  synthetic:", "  rate_scale: 1.0e-9\n  synthetic:", 5, ["rate_scale", "1e-09", "0.0001"]),
    ("  synthetic:", "  max_tokens: exactly\n  synthetic:", 5, ["max_tokens", "'exactly'", "'exact'"]),
    ("  synthetic:", "  closed_loop: {concurrency: 0}\n  synthetic:", 5, ["concurrency", "found 0"]),
    ("  synthetic:", "  closed_loop: {users: 9}\n  synthetic:", 5, ["users and think_s", "concurrency"]),
    ("  synthetic:", "  closed_loop: {}\n  synthetic:", 5, ["exactly one of concurrency and users"]),
    ("seed: 3", "profiles: ['']", 14, ["profiles[0]"]),
    ("seed: 3", "seed: 3\nname: again", 15, ["duplicate key", "name"]),
    ("seed: 3", "seed: [3", 15, ["not valid YAML"]),
    ("seed: 3", "seed: 3\n7: x", 15, ["7"]),
    ("seed: 3", "seed: 2026-01-01", 14, ["seed", "2026-01-01"]),
    ("seed: 3", "transfer: {links: 4}", 14, ["transfer", "prefill and decode pools"]),
    ("seed: 3", "transfer: {lnks: 4}", 14, ["transfer.lnks", "did you mean 'links'"]),
    ("seed: 3", "transfer: {link: rdma_4g}", 14, ["transfer.link", "'rdma_4g'", "'rdma_400g'"]),
    ("seed: 3", "profiles: [no/such/folder]", 14, ["profiles[0]", "no/such/folder"]),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), CASES, ids=[case[1][:40] for case in CASES])
def test_one_line_names_place_value_and_what_is_allowed(
    scenario_file: Write, old: str, new: str, line: int, words: list[str]
) -> None:
    path = scenario_file((old, new))
    with pytest.raises(UserError) as caught:
        build(load_scenario(path))
    lines = str(caught.value).splitlines()
    assert any(text.startswith(f"{path}:{line}: ") and all(word in text for word in words) for text in lines)
    assert all(text.startswith(f"{path}:") for text in lines)


def test_every_problem_has_its_line(scenario_file: Write) -> None:
    path = scenario_file(("seed: 3", "seed: x"), ("ttft_ms: 500", "ttft_ms: y"), ("name: small", "name: 5"))
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    found = [re.match(rf"{re.escape(str(path))}:(\d+): ", text) for text in str(caught.value).splitlines()]
    assert sorted(int(match.group(1)) for match in found if match) == [1, 13, 14]
    assert len(found) == 3


def test_a_thousand_unknown_keys_are_one_line(scenario_file: Write) -> None:
    path = scenario_file(("seed: 3", "\n".join(f"sed{i}: {i}" for i in range(1000))))
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"{path}:14: ")
    assert "1,000 unknown keys: 'sed0', 'sed1', 'sed2'" in message
    assert len(message) < 500


def test_many_wrong_values_are_counted(scenario_file: Write) -> None:
    pools = "".join(f"  - {{name: p{i}, gpu: h100_sxm, tp: x}}\n" for i in range(50))
    path = scenario_file(("  - name: all\n    gpu: h100_sxm\n", pools))
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    assert lines[0].startswith(f"{path}:11: pools[0].tp: found 'x'")
    assert "40 more" in lines[-1]


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n- b\n", "just words\n", "\x00", "a: &a [*a]\n"])
def test_what_is_no_scenario_at_all(scenario_file: Write, text: str) -> None:
    path = scenario_file(text=text)
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(str(path))


def test_aliases_of_aliases_do_not_explode(scenario_file: Write) -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(UserError, match="aliases"):
        load_scenario(scenario_file(text=bomb))


def test_file_encodings(scenario_file: Write, tmp_path: Path) -> None:
    path = scenario_file()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_scenario(path).scenario.name == "small"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(UserError, match="UTF-8"):
        load_scenario(path)
    with pytest.raises(UserError, match="no such scenario"):
        load_scenario(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (
            "trace: chat.csv.gz",
            ["workload.trace: no file 'chat.csv.gz'", "did you mean 'traces/chat.csv.gz'?"],
        ),
        ("trace: requsts.csv", ["workload.trace", "did you mean 'requests.csv'?"]),
        ("{trace: requests.csv, format: azur}", ["workload.format: unknown trace format 'azur'", "'azure'"]),
    ],
)
def test_a_trace_that_is_not_there_or_of_no_format(tmp_path: Path, workload: str, words: list[str]) -> None:
    (tmp_path / "requests.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    path = tmp_path / "small.yaml"
    plain = "name: x\nmodel: llama-3.1-8b\nengine: vllm-0.33\npools: [{gpu: h100_sxm}]\nworkload:\n  "
    path.write_text(plain + workload + "\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        build(load_scenario(path))
    assert str(caught.value).startswith(f"{path}:6: ")
    assert all(word in str(caught.value) for word in words)


EXPERTS = (
    ("llama-3.1-8b", "qwen3-30b-a3b"),
    ("gpu: h100_sxm", "gpu: h100_sxm\n    dp: 2\n    ep: 2\n    {}"),
)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("expert_load: {kind: zipf, s: -1}", "expert_load.s: found -1, allowed: greater than or equal to 0"),
        ("expert_load: {kind: zipf, z: 1}", "expert_load.s: is required and missing"),
        ("expert_load: {kind: zipf, z: 1}", "expert_load.z: unknown key 'z' (with the value 1)"),
        ("expert_load: {kind: zpf}", "expert_load: unknown expert load 'zpf' (did you mean 'zipf'?)"),
        ("placement: {kind: eplb, redundant_experts: 3}", "allowed: 1, or 4 redundant experts"),
        ("kv_tiers: [{kind: cpu, capacity_gib: 1}]", "kv_tiers cannot be combined with dp"),
    ],
)
def test_wrong_experts_have_their_line(scenario_file: Write, more: str, words: str) -> None:
    model, (old, new) = EXPERTS
    path = scenario_file(model, (old, new.format(more)))
    with pytest.raises(UserError) as caught:
        build(load_scenario(path))
    line = 14 if more.startswith("placement") else 15
    assert any(
        text.startswith(f"{path}:{line}: pools[0].") and words in text
        for text in str(caught.value).splitlines()
    )


@pytest.mark.parametrize(
    "change", [("llama-3.1-8b", "config.json"), ("vllm-0.33", "{preset: vllm-0.33, overhead: x.yaml}")]
)
def test_a_missing_file_has_its_place_once(scenario_file: Write, change: tuple[str, str]) -> None:
    path = scenario_file(change)
    with pytest.raises(UserError) as caught:
        build(load_scenario(path))
    assert str(caught.value).count(str(path)) == 1


def test_what_a_policy_does_not_model_has_its_line(scenario_file: Write) -> None:
    path = scenario_file(("vllm-0.33", "sglang-0.5.23"), ("gpu: h100_sxm", "gpu: h100_sxm\n    pp: 2"))
    with pytest.raises(UserError) as caught:
        build(load_scenario(path)).simulate()
    assert str(caught.value).startswith(
        f"{path}:13: pools[0].pp = 2 is not possible with sglang-0.5.23: its scheduler"
    )


@pytest.mark.parametrize(
    ("value", "allowed", "suggested"),
    [
        ("nothere.yaml", "scenarios/kv_tiers.yaml", False),
        ("rate", "trace", False),
        ("rate", "rate_per_s", True),
        ("fp9", "fp8", True),
        ("kv_teirs.yaml", "kv_tiers.yaml", True),
    ],
)
def test_a_suggestion_is_alike(value: str, allowed: str, suggested: bool) -> None:
    assert (allowed in nearest(value, [allowed])) == suggested
