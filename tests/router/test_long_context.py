"""Cache-aware routing on the long-context trace that ships: four replicas with prefix caching."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from simserve.core import Result
from simserve.deploy.build import Deployment, build
from simserve.deploy.manifest import manifest_of
from simserve.scenario.load import load_scenario
from simserve.workload import load_trace, take

TRACES = Path(__file__).resolve().parents[2] / "traces"

ROWS = 600
SCENARIO = """\
name: prefixes
model: llama-3.1-8b
engine: vllm-0.33
workload: {{trace: traces/{trace}, limit: {rows}}}
pools:
  - {{name: all, gpu: h100_sxm, replicas: {replicas}}}
router: {router}
"""


def deployment(
    folder: Path, router: str, trace: str = "long_context.jsonl.gz", replicas: int = 4, rows: int = ROWS
) -> Deployment:
    path = folder / "prefixes.yaml"
    path.write_text(
        SCENARIO.format(router=router, trace=trace, replicas=replicas, rows=rows), encoding="utf-8"
    )
    return build(load_scenario(path))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("prefixes")

    @cache
    def run(router: str) -> Result:
        return deployment(folder, router).simulate()

    return run


def hit_rate(result: Result) -> float:
    return float(result.cached_tokens.sum() / result.prompt_tokens.sum())


@pytest.fixture(scope="module")
def ceiling() -> np.ndarray:
    """Tokens of each prompt that some earlier request had at its beginning, from the ids alone."""
    trace = take(load_trace(TRACES / "long_context.jsonl.gz"), ROWS)
    assert trace.block_ids is not None
    assert trace.block_offsets is not None
    known: set[int] = set()
    tokens = []
    for row in range(len(trace)):
        ids = trace.block_ids[trace.block_offsets[row] : trace.block_offsets[row + 1]].tolist()
        leading = next((place for place, one in enumerate(ids) if one not in known), len(ids))
        tokens.append(min(leading * trace.block_tokens, int(trace.prompt_tokens[row]) - 1))
        known.update(ids)
    return np.array(tokens)


PREFIX_ROUTERS = [
    "cache_aware",
    "dynamo_kv",
    "{kind: dynamo_kv, use_kv_events: false}",
    "llm_d",
    "{kind: consistent_hash, hash_on: prefix, prefix_tokens: 1024}",
]


@pytest.mark.parametrize("router", PREFIX_ROUTERS)
def test_routing_by_prefix_finds_more(router: str, results, ceiling: np.ndarray) -> None:
    blind, aware = results("round_robin"), results(router)
    assert hit_rate(aware) > 1.2 * hit_rate(blind) > 0
    for result in (blind, aware):
        assert (result.cached_tokens <= ceiling).all(), "no request finds what nobody had before"


def test_less_prompt_to_compute_makes_a_faster_first_token(results) -> None:
    mean_ns = lambda result: float((result.first_token_ns - result.arrival_ns).mean())  # noqa: E731
    assert mean_ns(results("dynamo_kv")) < mean_ns(results("round_robin"))


def test_a_trace_without_content_is_balanced_and_the_manifest_says_so(tmp_path: Path) -> None:
    built = deployment(tmp_path, "cache_aware", trace="chat.csv.gz", rows=300)
    counts = np.bincount(built.simulate().replica, minlength=4)
    assert counts.min() > 50
    said = [line for line in manifest_of(built, "")["assumptions"] if line.startswith("router cache_aware: ")]
    assert said == [
        "router cache_aware: the trace does not say what prompts share: all prompts are taken as different"
    ]
    alone = deployment(tmp_path, "cache_aware", trace="chat.csv.gz", rows=300, replicas=1)
    assert not any(line.startswith("router") for line in manifest_of(alone, "")["assumptions"])
    knows = deployment(tmp_path, "cache_aware", rows=10)
    assert not any(line.startswith("router") for line in manifest_of(knows, "")["assumptions"])
