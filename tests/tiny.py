"""The smallest scenario that says something: a few equal requests on one H100."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML

_TEXT = """\
name: {name}
model: {model}
engine: vllm-0.33
workload:
  synthetic:
    requests: {requests}
    arrivals: {{kind: {arrivals}, rate_per_s: {rate_per_s}}}
    prompt_tokens: {{kind: constant, value: {prompt}}}
    output_tokens: {{kind: constant, value: {output}}}
pools:
  - {pool}
slo: {slo}
seed: 3
"""


def tiny(
    name: str = "small",
    *,
    model: str = "llama-3.1-8b",
    requests: int = 40,
    arrivals: str = "poisson",
    rate_per_s: float = 8,
    prompt: int = 300,
    output: int = 20,
    pool: str = "{name: all, gpu: h100_sxm}",
    slo: str = "{ttft_ms: 500, tpot_ms: 25}",
) -> str:
    """Return the scenario as YAML; more blocks can be put behind it."""
    return _TEXT.format_map(locals())


def tiny_mapping(**changes: Any) -> dict[str, Any]:
    """Return what the file would hold."""
    return YAML(typ="safe").load(tiny(**changes))
