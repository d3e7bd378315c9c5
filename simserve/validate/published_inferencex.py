"""Settings of InferenceX's servers, from its benchmark scripts (github.com/SemiAnalysisAI/InferenceX).

Rows of its results (AIConfigurator's collection holds some) give the model, the GPU, the version of vLLM and
the lengths, but no flags. The scripts do: `benchmarks/single_node/<model>_<precision>_<gpu>.sh`, with what
changed when in `perf-changelog.yaml` (the numbers below are its pull requests). Graphs of up to 2,048 tokens,
which some of the scripts capture, are not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Row = Mapping[str, str]
ORIGIN = "InferenceX dump"
"""Part of the title of the source of such rows (its experimental sweeps have other servers)."""


class Server(NamedTuple):
    """What a script sets, beside what a row says."""

    what: str
    columns: dict[str, str]
    """Columns that the row leaves empty."""
    pool: dict[str, Any]
    options: dict[str, Any]


def _gpt_oss_on_hopper(row: Row) -> Server:
    """vLLM 0.13 to 0.18 (#327, #789, #960): `VLLM_MXFP4_USE_MARLIN=1`, as many sequences as clients."""
    options = {
        "max_num_seqs": round(float(row["concurrency"])),
        "max_num_batched_tokens": 8192,
        "enable_prefix_caching": False,
    }
    return Server("experts by Marlin, limits", {}, {"moe_backend": "marlin"}, options)


def _minimax_on_h200(row: Row) -> Server:
    """vLLM 0.16 (#831): defaults, and more memory."""
    return Server("share of memory", {}, {"gpu_memory_utilization": 0.95}, {})


def _minimax_on_b200(row: Row) -> Server:
    """vLLM 0.19 (#1010, which brought the 512 clients): an 8-bit cache, twice the prompt per step."""
    options = {
        "max_num_batched_tokens": 2 * round(float(row["isl"])),
        "enable_prefix_caching": False,
    }
    return Server("KV cache at 8 bit, limits", {"kv_precision": "fp8"}, {}, options)


_SERVERS: dict[tuple[str, str], Callable[[Row], Server]] = {
    ("gpt-oss-120b", "H100"): _gpt_oss_on_hopper,
    ("gpt-oss-120b", "H200"): _gpt_oss_on_hopper,
    ("MiniMax-M2.5", "H200"): _minimax_on_h200,
    ("MiniMax-M2.5", "B200"): _minimax_on_b200,
}


def server_of(row: Row) -> Server | None:
    """Return what InferenceX's script sets, or None if the row is not one of those read."""
    if ORIGIN not in row.get("source_title", "") or row["framework"].lower() != "vllm":
        return None
    known = _SERVERS.get((row["model"].rsplit("/", 1)[-1], row["gpu"].split(" ")[0]))
    return known(row) if known and row.get("concurrency") else None
