"""Import layer measurements of LLMServingSim's profiler (MIT): a folder of CSV files, one GPU and model each.

`<gpu>_<model>_tp<degree>_attention.csv[.gz]` (one attention call: new and cached tokens of one prompt,
decodes and their context), `..._dense` (a layer by tokens) and `..._per_sequence` (the head by sequences), in
microseconds. Taken: matrix products, norms and the like, attention of prompts (fresh and on a cached prefix),
of decodes, and of decodes beside a chunk. Experts have no table here, and mixtures of unequal lengths
(`..._skew`) judge a rule (`kernels.tail`): both are left out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simserve.errors import ProfileError, nearest
from simserve.hardware import gpu_names
from simserve.latency.blocks.plan import SAMPLING_PASSES
from simserve.latency.tables.profiles import ProfileTable, write_profile
from simserve.latency.tables.roofline import BYTES
from simserve.model import ModelSpec, load_model
from simserve.model.layers import DenseFfn, GqaAttention

NAME = re.compile(r"(?P<gpu>[a-z0-9]+)_(?P<model>.+)_tp(?P<tp>\d+)_(?P<kind>[a-z_]+)\.csv(\.gz)?")
COLUMNS = {
    "attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
}
DTYPE = "bf16"


class Source(NamedTuple):
    """One file: what was measured, of which model on how many ranks."""

    path: Path
    gpu: str
    model: ModelSpec
    tp: int
    kind: str


def import_llmservingsim(folder: Path, target: Path, gpus: list[str]) -> Iterator[tuple[str, str, int]]:
    """Write `<target>/<gpu>/<op>.parquet`; yield (gpu, op, rows). Raises `ProfileError`."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    sources = [source for source in _sources(folder) if not gpus or source.gpu in gpus]
    if not sources:
        wanted = ", ".join(gpus) or "LLMServingSim"
        raise ProfileError(f"{folder}: no files of {wanted}, such as rtx4090_llama-3.1-8b_tp1_dense.csv.gz")
    for source in sources:
        for op, rows in _READERS[source.kind](source, _read(source)):
            parts[source.gpu, op] += rows
    for (gpu, op), rows in parts.items():
        table = _table(target / gpu / f"{op}.parquet", op, rows)
        write_profile(table.path, table)
        yield gpu, op, len(table)


def _sources(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.glob("*.csv*")):
        found = NAME.fullmatch(path.name)
        if found is None or found["kind"] not in COLUMNS:
            continue
        known = {name.replace("_", ""): name for name in gpu_names()}
        if found["gpu"] not in known:
            raise ProfileError(f"{path}: unknown GPU {found['gpu']!r}{nearest(found['gpu'], known)}")
        yield Source(path, known[found["gpu"]], load_model(found["model"]), int(found["tp"]), found["kind"])


def _read(source: Source) -> pd.DataFrame:
    rows = pd.read_csv(source.path)
    missing = [name for name in COLUMNS[source.kind] if name not in rows.columns]
    if missing:
        raise ProfileError(f"{source.path}: lacks the column {missing[0]!r}")
    time_us = rows["time_us"].to_numpy(np.float64)
    wrong = np.flatnonzero(~(time_us > 0))
    if len(wrong):
        raise ProfileError(
            f"{source.path}: row {wrong[0] + 2} has time_us {time_us[wrong[0]]:g}, not above 0"
        )
    return rows


def _products(source: Source) -> dict[str, tuple[int, int]]:
    """Return (n, k) of each matrix product of a rank, by LLMServingSim's name of the layer."""
    model, tp, shapes = source.model, source.tp, {}
    for group in model.layers:
        for attention in group.attentions:
            if isinstance(attention, GqaAttention):
                queries = attention.num_attention_heads * attention.head_dim // tp
                keys = max(1, attention.num_key_value_heads // tp) * attention.head_dim
                shapes["qkv_proj"] = (queries + 2 * keys, model.hidden_size)
                shapes["o_proj"] = (model.hidden_size, queries)
        for ffn in group.ffns:
            if isinstance(ffn, DenseFfn):
                inner = ffn.intermediate_size // tp
                shapes["gate_up_proj"] = ((ffn.matrices - 1) * inner, model.hidden_size)
                shapes["down_proj"] = (model.hidden_size, inner)
    return shapes | {"lm_head": (model.vocab_size // tp, model.hidden_size)}


def _moved(source: Source) -> dict[str, tuple[str, int]]:
    """Return (kind, bytes per row) of each kernel that only moves memory, counted as the blocks do.

    Their profiler times the write to the cache with attention, so the rotary embedding's row has none to pay.
    """
    model, tp, width = source.model, source.tp, BYTES[DTYPE]
    kinds = {
        "embedding": ("embedding", 2 * model.hidden_size * width),
        "layernorm": ("add_rmsnorm", 4 * model.hidden_size * width),
        "final_layernorm": ("rmsnorm", 2 * model.hidden_size * width),
        "sampler": ("argmax", SAMPLING_PASSES * 4 * model.vocab_size),
    }
    for group in model.layers:
        for attention in group.attentions:
            if isinstance(attention, GqaAttention):
                queries = attention.num_attention_heads * attention.head_dim // tp
                keys = max(1, attention.num_key_value_heads // tp) * attention.head_dim
                both = 2 * (queries + keys) * width
                kinds["rotary_emb"] = ("rope_write", both + 2 * keys * 2 * width)
                kinds["qk_norm"] = ("rmsnorm", both)
        for ffn in group.ffns:
            if isinstance(ffn, DenseFfn):
                kinds["act_fn"] = ("silu_mul", ffn.matrices * (ffn.intermediate_size // tp) * width)
    return kinds


def _dense(source: Source, rows: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    size = "tokens" if source.kind == "dense" else "sequences"
    for layer, (kind, row_bytes) in _moved(source).items():
        found = rows[rows["layer"] == layer]
        yield (
            "elementwise",
            [
                {"kind": kind, "dtype": DTYPE, "row_bytes": row_bytes, "tokens": int(count), "latency_us": us}
                for count, us in zip(found[size], found["time_us"], strict=True)
            ],
        )
    for layer, (n, k) in _products(source).items():
        found = rows[rows["layer"] == layer]
        yield (
            "gemm",
            [
                {"dtype": DTYPE, "n": n, "k": k, "m": int(m), "latency_us": us}
                for m, us in zip(found[size], found["time_us"], strict=True)
            ],
        )


def _attention(source: Source, rows: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    attention = source.model.layers[0].attentions[0]
    if not isinstance(attention, GqaAttention):
        raise ProfileError(f"{source.path}: {source.model.name} has no attention of heads with a cache")
    heads = {
        "q_heads": attention.num_attention_heads // source.tp,
        "kv_heads": max(1, attention.num_key_value_heads // source.tp),
        "head_dim": attention.head_dim,
        "dtype": DTYPE,
        "kv_dtype": DTYPE,
        "window": 0,
    }
    alone = rows[(rows["prefill_chunk"] == 0) & (rows["n_decode"] > 0)]
    yield (
        "attn_decode",
        [
            heads | {"batch": int(n), "kv_len": int(context), "latency_us": us}
            for n, context, us in zip(alone["n_decode"], alone["kv_decode"], alone["time_us"], strict=True)
        ],
    )
    prompts = rows[(rows["prefill_chunk"] > 0) & (rows["n_decode"] == 0)]
    yield (
        "attn_prefill",
        [
            heads | {"batch": 1, "q_len": int(new), "prefix_len": int(cached), "latency_us": us}
            for new, cached, us in zip(
                prompts["prefill_chunk"], prompts["kv_prefill"], prompts["time_us"], strict=True
            )
        ],
    )
    mixed = rows[(rows["prefill_chunk"] > 0) & (rows["n_decode"] > 0)]
    axes = ("batch", "kv_len", "prefix_len", "q_len")
    columns = [mixed[name] for name in ("n_decode", "kv_decode", "kv_prefill", "prefill_chunk")]
    yield (
        "attn_mixed",
        [
            heads | dict(zip(axes, map(int, size), strict=True)) | {"latency_us": us}
            for *size, us in zip(*columns, mixed["time_us"], strict=True)
        ],
    )


_READERS = {"attention": _attention, "dense": _dense, "per_sequence": _dense}


def _table(path: Path, op: str, rows: list[dict[str, Any]]) -> ProfileTable:
    """Return the rows as a table, the median where a shape was measured several times."""
    keys = [name for name in rows[0] if name != "latency_us"]
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for row in rows:
        times[tuple(row[name] for name in keys)].append(float(row["latency_us"]))
    shapes = sorted(times)
    text = {"dtype", "kv_dtype", "kind"}
    columns = {
        name: np.array([shape[place] for shape in shapes], object if name in text else np.int64)
        for place, name in enumerate(keys)
    }
    columns["latency_us"] = np.array([np.median(times[shape]) for shape in shapes], np.float32)
    columns["quality"] = np.zeros(len(shapes), np.int64)
    origin = {"kernel": "vLLM", "backend": "vllm", "backend_version": "0.19", "source": "llmservingsim"}
    columns |= {name: np.full(len(shapes), value, object) for name, value in origin.items()}
    about: dict[str, Any] = {"op": op, "key_columns": keys, "note": "LLMServingSim's profiler (MIT)"}
    about["rotating_inputs"] = op == "gemm"  # weights of a whole model: none of these times beats the HBM
    return ProfileTable(path, columns, about, len(shapes))
