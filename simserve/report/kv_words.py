"""Why runs differ in the memory of their KV cache and in the work per byte of it, in words."""

from __future__ import annotations

from typing import Any

from simserve.report.difference_words import in_unit_words
from simserve.report.format import number

Values = dict[str, Any]


def kv_sentences(table: dict[str, Any]) -> list[str]:
    """Return sentences about KV bytes per token and decode intensity; none where the runs do not differ."""
    names = [table["base"], *table["variants"]]
    rows = {
        row["key"].removeprefix("deployment."): {name: row["values"][name] for name in names}
        for row in table["measures"]
    }
    per_gpu = rows.get("kv_bytes_per_token_per_gpu")
    if not per_gpu or len(_distinct(per_gpu)) < 2:
        return []
    lines = [_sizes(rows, per_gpu)]
    if "kv_tokens" in rows:
        capacity = ", ".join(f"{name} {number(value)}" for name, value in rows["kv_tokens"].items())
        lines.append(f"What is left of the memory holds so many tokens in all replicas: {capacity}.")
    if len(_distinct(rows.get("decode_flop_per_kv_byte", {}))) > 1:
        lines.append(_intensity(rows["decode_flop_per_kv_byte"]))
    return lines


def _sizes(rows: dict[str, Values], per_gpu: Values) -> str:
    whole = rows.get("kv_bytes_per_token", {})
    sizes = []
    for name, here in per_gpu.items():
        once = whole.get(name)
        of = f" (of {in_unit_words(once, 'bytes')} in all layers)" if once and once != here else ""
        sizes.append(f"{name} {in_unit_words(here, 'bytes')}{of}")
    return (
        f"One token takes this much KV memory on each GPU: {', '.join(sizes)}. Keys and values of separate "
        "heads are split over tensor-parallel GPUs; a shared latent is copied to each of them."
    )


def _intensity(values: Values) -> str:
    each = ", ".join(f"{name} {number(float(v))}" for name, v in values.items() if v is not None)
    return (
        f"For each byte of KV that a decode step reads, a GPU computes so many FLOP of attention: {each}. "
        "Below the GPU's ratio of peak FLOP/s to memory bandwidth the bytes set the pace: attention then "
        "takes as long as reading the cache."
    )


def _distinct(values: Values) -> set[Any]:
    return {value for value in values.values() if value is not None}
