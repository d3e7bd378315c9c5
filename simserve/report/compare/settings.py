"""Settings, values and differences as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.words import NBSP, latency, number, percent

Row = dict[str, Any]


def change_words(change: dict[str, Any]) -> str:
    """Return `max_num_batched_tokens 512 → 8,192`."""
    return f"{setting_name(change)} {value_words(change['base'])} → {value_words(change['variant'])}"


def changes_words(changes: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[str]]:
    """Return each variant's changes in words.

    Of a mapping that the base does not have, what sets it apart from those of other variants is told: beside
    its kind, values that most of them do not share. Without a kind, all that differs and what is switched on
    say what it is. A mapping that one variant alone has is told whole.
    """
    peers: dict[str, list[dict[str, Any]]] = {}
    for found in changes.values():
        for change in found:
            if isinstance(change["variant"], dict):
                peers.setdefault(setting_name(change), []).append(change["variant"])
    return {name: [_with_details(change, peers) for change in found] for name, found in changes.items()}


def _with_details(change: dict[str, Any], peers: dict[str, list[dict[str, Any]]]) -> str:
    mapping = change["variant"]
    if not isinstance(mapping, dict):
        return change_words(change)
    others, kind = peers[setting_name(change)], _kind(mapping)
    least = len(others) / 2 if kind else len(others) - 1
    apart = [
        name
        for name, value in mapping.items()
        if name not in _KINDS and (_as_often(name, value, others) <= least or (value is True and not kind))
    ]
    if len(others) == 1 or not (kind or apart):
        apart = [n for n, v in mapping.items() if n not in _KINDS and v is not None]
    details = [f"{name} {value_words(mapping[name])}" for name in apart]
    return change_words({**change, "variant": ", ".join([kind] * bool(kind) + details)})


def _as_often(name: str, value: Any, mappings: list[dict[str, Any]]) -> int:
    """Return how many mappings have this value."""
    return sum(one.get(name) == value for one in mappings)


_KINDS = ("kind", "method")
"""Keys that say what a mapping is."""


def _kind(mapping: dict[str, Any]) -> str:
    return next((str(mapping[key]) for key in _KINDS if mapping.get(key)), "")


def value_words(value: Any) -> str:
    """Return a setting as people write it."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return " + ".join(map(value_words, value)) or "none"
    if isinstance(value, dict):
        told = (f"{key} {value_words(v)}" for key, v in value.items() if v is not None)
        return _kind(value) or ", ".join(told)
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference_words(row: Row, variant: str) -> str:
    """Return a variant's difference from the base: `−41 %`, `2.3×`, or in points for shares."""
    found = row["differences"][variant]
    if found is None:
        return ""
    if row["unit"] == "share":
        return f"{signed(found['absolute'] * 100, 2)}{NBSP}points"
    return relative_words(found["relative"])


def is_shown(found: dict[str, Any]) -> bool:
    """Return False if the interval of a difference over several seeds holds 0."""
    low, high = found.get("low"), found.get("high")
    return low is None or high is None or not low <= 0 <= high


def relative_words(share: float | None) -> str:
    """Return a relative difference as a signed percentage, from a doubling on as a factor."""
    if share is None:
        return ""
    return f"{number(1 + share)}×" if share >= 1 else f"{signed(share * 100)}{NBSP}%"


def signed(value: float, decimals: int = 3) -> str:
    """Return a number with its sign, a real minus, and 0 without any; no digit beyond `decimals`."""
    size = abs(float(value))
    text = number(size)
    if len(text.partition(".")[2]) > decimals:
        text = f"{size:.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        return "0"
    return ("−" if value < 0 else "+") + text


def in_unit_words(value: float | None, unit: str) -> str:
    """Return a value with its unit."""
    if unit == "ms":
        return latency(value)
    if unit == "share":
        return percent(value)
    if unit == "bytes" and value is not None:
        return f"{number(value / 1024)}{NBSP}KiB"
    return number(value)


def setting_name(change: dict[str, Any]) -> str:
    """Return a setting's name, with its pool where there are several."""
    return f"{change['pool']}.{change['name']}" if change["pool"] else change["name"]


# Why runs differ in the memory of their KV cache and in the work per byte of it, in words.

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
