"""Measurements of attention on two cards that do not ship: read from ../shared, turned into profile
tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from simserve.latency.tables.profiles import ProfileTable, write_profile
from tests.places import SHARED

FOLDER = SHARED / "kernel_profiles_extra" / "llmservingsim"
needs_extra = pytest.mark.reference("kernel_profiles_extra/llmservingsim")


def read_extra(name: str) -> pd.DataFrame:
    return pd.read_csv(FOLDER / f"{name}.csv.gz")


def write_attention_tables(
    folder: Path, gpu: str, name: str, heads: tuple[int, int, int], dtype: str = "bf16"
) -> pd.DataFrame:
    """Write what was measured without cached prefix, and return all rows (cached and mixed ones included)."""
    rows = read_extra(name)
    common = dict(zip(("q_heads", "kv_heads", "head_dim"), heads, strict=True))
    common |= {"dtype": dtype, "kv_dtype": dtype, "window": 0, "quality": 0, "kernel": "vLLM 0.19"}
    alone = rows[rows.prefill_chunk == 0]
    _write(folder / gpu / "attn_decode.parquet", "attn_decode", common, alone.time_us,
           batch=alone.n_decode, kv_len=alone.kv_decode)  # fmt: skip
    fresh = rows[(rows.n_decode == 0) & (rows.kv_prefill == 0)]
    _write(folder / gpu / "attn_prefill.parquet", "attn_prefill", common, fresh.time_us,
           batch=np.ones(len(fresh), int), q_len=fresh.prefill_chunk)  # fmt: skip
    return rows


def _write(path: Path, op: str, common: dict, latency_us: pd.Series, **sweep) -> None:
    size = len(latency_us)
    columns = {
        name: np.full(size, value, object if isinstance(value, str) else np.int64)
        for name, value in common.items()
    }
    columns |= {name: np.asarray(values, np.int64) for name, values in sweep.items()}
    columns["latency_us"] = np.asarray(latency_us, np.float32)
    about = {"op": op, "key_columns": [*common, *sweep]}
    write_profile(path, ProfileTable(path, columns, about, size))
