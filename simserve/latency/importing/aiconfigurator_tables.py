"""How the tables of aiconfigurator-core (NVIDIA, Apache-2.0) map to ours: files, columns, which rows to
keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]
DTYPES = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "fp8": "fp8"}
COLLECTIVES = {"alltoall": "all_to_all"}
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Source:
    """One kind of file of the source, and the table that it goes to."""

    op: str
    folder: str
    """`<family>/<backend>` below the GPU's folder; the version follows."""
    file: str
    keys: tuple[str, ...]
    convert: Callable[[Columns], Iterator[Columns]]
    """From the file's columns to ours; key columns and `latency_us` (one file may hold several kinds of
    rows)."""
    versions: tuple[str, ...] = ()
    """Versions to take; empty: the newest that is complete."""


def _dtype(column: NDArray[Any]) -> NDArray[Any]:
    return np.array([DTYPES.get(name, name) for name in column.tolist()], object)


def _us(columns: Columns) -> NDArray[Any]:
    return columns["latency"].astype(np.float64) * 1000.0


def _same(rows: Columns, **renamed: str) -> Columns:
    return {ours: rows[theirs] for ours, theirs in renamed.items()} | {"latency_us": _us(rows)}


def _gemm(rows: Columns) -> Iterator[Columns]:
    yield {"dtype": _dtype(rows["gemm_dtype"])} | _same(rows, n="n", k="k", m="m")


def _heads(rows: Columns) -> Columns:
    no_window = np.zeros(len(rows["latency"]), np.int64)
    return {
        "dtype": _dtype(rows["attn_dtype"]),
        "kv_dtype": _dtype(rows["kv_cache_dtype"]),
        "window": rows.get("window_size", no_window),
    } | _same(rows, q_heads="num_heads", kv_heads="num_key_value_heads", head_dim="head_dim",
              batch="batch_size")  # fmt: skip


def _attn_prefill(rows: Columns) -> Iterator[Columns]:
    yield _heads(rows) | {"prefix_len": rows["step"], "q_len": rows["isl"]}


def _attn_decode(rows: Columns) -> Iterator[Columns]:
    yield _heads(rows) | {"kv_len": rows["isl"] + rows["step"]}


def _attn_decode_8_bit(rows: Columns) -> Iterator[Columns]:
    """TensorRT-LLM's rows over an 8-bit cache, which it reads at full speed where others do not (Hopper)."""
    ours = _heads(rows) | {"kv_len": rows["isl"] + rows["step"]}
    keep = (ours["kv_dtype"] == "fp8") & (ours["head_dim"] == 128) & (ours["window"] == 0)
    yield {name: column[keep] for name, column in ours.items()} | {"_keep": keep}


def _mla(rows: Columns) -> Columns:
    dtypes = {"dtype": _dtype(rows["mla_dtype"]), "kv_dtype": _dtype(rows["kv_cache_dtype"])}
    return dtypes | _same(rows, q_heads="num_heads", batch="batch_size")


def _mla_prefill(rows: Columns) -> Iterator[Columns]:
    yield _mla(rows) | {"prefix_len": rows["step"], "q_len": rows["isl"]}


def _mla_decode(rows: Columns) -> Iterator[Columns]:
    yield _mla(rows) | {"kv_len": rows["isl"] + rows["step"]}


_STEPS = (0, 128, 2048, 4096, 32768, 49152, 61440, 65535)
"""Cached tokens of the blocks of compressed attention that are kept: their grid is far denser."""


def _compressed(decode: bool) -> Callable[[Columns], Iterator[Columns]]:
    """Whole attention blocks of DeepSeek-V4, projections included, by model (its width) and tp."""

    def convert(rows: Columns) -> Iterator[Columns]:
        cached, new = rows["step"], rows["isl"]
        powers = (new & (new - 1)) == 0
        keep = (rows["gemm_type"] == "fp8_block") & (decode | (powers & np.isin(cached, _STEPS)))
        pro = np.array(["Pro" in name for name in rows["model"].tolist()])
        ours = {
            "kv_dtype": np.full(len(new), "fp8", object), "dtype": rows["gemm_type"],
            "hidden": np.where(pro, 7168, 4096),
        } | _same(rows, ratio="compress_ratio", tp="tp_size", batch="batch_size")  # fmt: skip
        ours |= {"kv_len": new + cached} if decode else {"prefix_len": cached, "q_len": new}
        yield {name: column[keep] for name, column in ours.items()} | {"_keep": keep}

    return convert


def _hyper_connections(rows: Columns) -> Iterator[Columns]:
    """Hyper-connections of DeepSeek-V4; a row holds both blocks of a layer."""
    hidden, kind = rows["hidden_size"], rows["op_name"]
    streams = np.where(kind == "pre", rows["hc_mult"] + 1, 2 * rows["hc_mult"] + 1)
    size = len(hidden)
    yield {
        "kind": np.array([f"mhc_{name}" for name in kind.tolist()], object),
        "dtype": np.full(size, "bf16", object), "width": hidden, "written": np.zeros(size, np.int64),
        "row_bytes": 2 * hidden * streams, "tokens": rows["num_tokens"],
        "latency_us": _us(rows) / rows["num_sites"],
    }  # fmt: skip


def _mla_bmm(rows: Columns) -> Iterator[Columns]:
    stage = np.array([name.rsplit("_", 1)[1] for name in rows["op_name"].tolist()], object)
    yield {"stage": stage, "dtype": _dtype(rows["bmm_dtype"])} | _same(
        rows, q_heads="num_heads", tokens="num_tokens"
    )


def _experts(rows: Columns) -> Columns:
    loads = [name.replace("uniform", "balanced") for name in rows["distribution"].tolist()]
    alphas = [float(name.rsplit("_", 1)[1]) if name.startswith("power_law") else 0.0 for name in loads]
    kinds = ["power_law" if name.startswith("power_law") else name for name in loads]
    return {
        "dtype": _dtype(rows["moe_dtype"]), "load": np.array(kinds, object), "alpha": np.array(alphas)
    } | _same(rows, hidden="hidden_size", inter="inter_size", experts="num_experts", topk="topk",
              tp="moe_tp_size", ep="moe_ep_size", tokens="num_tokens")  # fmt: skip


def _moe(rows: Columns) -> Iterator[Columns]:
    ours = _experts(rows)
    # SGLang's rows with EP > 1 run all tokens * topk instead of those routed to the rank.
    wrong = (rows["framework"] == "SGLang") & (ours["ep"] > 1)
    yield {name: column[~wrong] for name, column in ours.items()} | {"_keep": ~wrong}


def _moe_mxfp4(rows: Columns) -> Iterator[Columns]:
    """vLLM's rows of experts in MXFP4, whose kernels are not SGLang's: gpt-oss, and Marlin's of Kimi-K3 (on
    Hopper its only ones). With expert parallelism TensorRT-LLM's stay."""
    ours = _experts(rows)
    kernels = rows["kernel_source"].tolist()
    kept = ["gptossmxfp4" in kernel or "mxfp4moe_marlin" in kernel for kernel in kernels]
    keep = np.array(kept) & (ours["ep"] == 1)
    yield {name: column[keep] for name, column in ours.items()} | {"_keep": keep}


def _moe_minimax(rows: Columns) -> Iterator[Columns]:
    """vLLM's own rows of MiniMax-M2.5 with 8-bit blocks (Triton), which take up to 1.5 times SGLang's."""
    ours = _experts(rows)
    shape = (ours["hidden"] == 3072) & (ours["inter"] == 1536) & (ours["experts"] == 256)
    keep = shape & (ours["dtype"] == "fp8_block") & (ours["ep"] == 1)
    yield {name: column[keep] for name, column in ours.items()} | {"_keep": keep}


def _moe_deepep(phase: str) -> Callable[[Columns], Iterator[Columns]]:
    def convert(rows: Columns) -> Iterator[Columns]:
        yield _experts(rows) | {"phase": np.full(len(rows["latency"]), phase, object)}

    return convert


def _nccl(rows: Columns) -> Iterator[Columns]:
    dtype = _dtype(rows["nccl_dtype"])
    width = np.array([1 if name == "int8" else 2 for name in dtype.tolist()])
    yield {
        "coll": np.array([COLLECTIVES.get(name, name) for name in rows["op_name"].tolist()], object),
        "impl": np.full(len(dtype), "nccl", object), "dtype": dtype,
        "nodes": np.ones(len(dtype), np.int64), "bytes": rows["message_size"] * width,
    } | _same(rows, ranks="num_gpus")  # fmt: skip


def _custom_all_reduce(rows: Columns) -> Iterator[Columns]:
    eager = ["eager" in name for name in rows["kernel_source"].tolist()]
    size = len(eager)
    yield {
        "coll": np.full(size, "all_reduce", object),
        "impl": np.array(["custom_eager" if it else "custom_graph" for it in eager], object),
        "dtype": _dtype(rows["allreduce_dtype"]), "nodes": np.ones(size, np.int64),
        "bytes": rows["message_size"] * 2,
    } | _same(rows, ranks="num_gpus")  # fmt: skip


def _exchange(mode: str) -> Callable[[Columns], Iterator[Columns]]:
    def convert(rows: Columns) -> Iterator[Columns]:
        size = len(rows["num_token"])
        for phase, dtype in (("dispatch", "fp8"), ("combine", "bf16")):
            if mode == "normal":
                time_us = rows[f"{phase}_transmit_us"] + rows[f"{phase}_notify_us"]
                sms = rows[f"{phase}_sms"]
            else:
                time_us, sms = rows[f"{phase}_avg_t_us"], np.zeros(size, np.int64)
            yield {
                "phase": np.full(size, phase, object), "mode": np.full(size, mode, object),
                "dtype": np.full(size, dtype, object), "hidden": rows["hidden_size"],
                "topk": rows["num_topk"], "experts": rows["num_experts"], "nodes": rows["node_num"],
                "ranks": rows["node_num"] * GPUS_PER_NODE, "sms": sms,
                "tokens_per_rank": rows["num_token"], "latency_us": time_us,
            }  # fmt: skip

    return convert


def _quant(kind: str) -> Callable[[Columns], Iterator[Columns]]:
    def convert(rows: Columns) -> Iterator[Columns]:
        size = len(rows["m"])
        yield {
            "kind": np.full(size, kind, object), "dtype": _dtype(rows["quant_dtype"])
        } | _same(rows, k="k", m="m")  # fmt: skip

    return convert


HEADS = ("dtype", "kv_dtype", "q_heads", "kv_heads", "head_dim", "window", "batch")
EXPERTS = ("dtype", "hidden", "inter", "experts", "topk", "tp", "ep", "load", "alpha", "tokens")
COLLECTIVE = ("coll", "impl", "dtype", "ranks", "nodes", "bytes")
EXCHANGE = (
    "phase", "mode", "dtype", "hidden", "topk", "experts", "ranks", "nodes", "sms", "tokens_per_rank"
)  # fmt: skip
MLA = ("dtype", "kv_dtype", "q_heads", "batch")
QUANT = ("kind", "dtype", "k", "m")
COMPRESSED = ("kv_dtype", "dtype", "hidden", "ratio", "tp", "batch")
ROWS = ("kind", "dtype", "width", "written", "row_bytes", "tokens")
DEEPEP_VERSIONS = ("0.5.6.post2", "0.5.12")

SOURCES = (
    Source("gemm", "gemm/sglang", "gemm_perf", ("dtype", "n", "k", "m"), _gemm),
    Source("attn_prefill", "attention/sglang", "context_attention_perf",
           (*HEADS, "prefix_len", "q_len"), _attn_prefill),
    Source("attn_decode", "attention/sglang", "generation_attention_perf",
           (*HEADS, "kv_len"), _attn_decode),
    Source("attn_decode", "attention/trtllm", "generation_attention_perf",
           (*HEADS, "kv_len"), _attn_decode_8_bit),
    Source("mla_prefill", "mla/trtllm", "context_mla_perf", (*MLA, "prefix_len", "q_len"), _mla_prefill),
    Source("mla_decode", "mla/trtllm", "generation_mla_perf", (*MLA, "kv_len"), _mla_decode),
    Source("mla_bmm", "mla_bmm/sglang", "mla_bmm_perf", ("stage", "dtype", "q_heads", "tokens"), _mla_bmm),
    Source("moe", "moe/sglang", "moe_perf", EXPERTS, _moe),
    Source("moe", "moe/trtllm", "moe_perf", EXPERTS, _moe),
    Source("moe", "moe/vllm", "moe_perf", EXPERTS, _moe_mxfp4),
    Source("moe", "moe/vllm", "moe_perf", EXPERTS, _moe_minimax, ("0.19.0",)),
    Source("moe_deepep", "moe/sglang", "wideep_context_moe_perf",
           ("phase", *EXPERTS), _moe_deepep("prefill")),
    Source("moe_deepep", "moe/sglang", "wideep_generation_moe_perf",
           ("phase", *EXPERTS), _moe_deepep("decode")),
    Source("collective", "comm/nccl", "nccl_perf", COLLECTIVE, _nccl),
    Source("collective", "comm/vllm", "custom_allreduce_perf", COLLECTIVE, _custom_all_reduce),
    Source("ep_a2a", "comm/sglang", "wideep_deepep_ll_perf", EXCHANGE,
           _exchange("low_latency"), DEEPEP_VERSIONS),
    Source("ep_a2a", "comm/sglang", "wideep_deepep_normal_perf", EXCHANGE,
           _exchange("normal"), DEEPEP_VERSIONS),
    *(
        Source(
            f"compressed_{ours}", f"sparse_attention/{backend}", f"dsv4_{kind}_{theirs}_module_perf",
            (*COMPRESSED, *lengths), _compressed(ours == "decode"),
        )
        for backend in ("vllm", "sglang", "trtllm")
        for kind in ("csa", "hca")
        for ours, theirs, lengths in (
            ("prefill", "context", ("prefix_len", "q_len")), ("decode", "generation", ("kv_len",))
        )
    ),
    Source("elementwise", "mhc/vllm", "mhc_module_perf", ROWS, _hyper_connections),
    Source("quant", "quantize/vllm", "scale_matrix_perf", QUANT, _quant("static_scale")),
    Source("quant", "quantize/vllm", "computescale_perf", QUANT, _quant("dynamic_extra")),
)  # fmt: skip
"""Which backends' rows are taken for each operation; of several, an engine prefers its own."""
