"""Settings, values and differences as people write them."""

from __future__ import annotations

from typing import Any

from simserve.report.format import NBSP, latency, number, percent

Row = dict[str, Any]


def change_words(change: dict[str, Any]) -> str:
    """Return `max_num_batched_tokens 512 → 8,192`."""
    return f"{setting_name(change)} {value_words(change['base'])} → {value_words(change['variant'])}"


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
        return str(value.get("kind") or ", ".join(f"{key} {value_words(v)}" for key, v in value.items()))
    return f"{value:g}" if isinstance(value, float) else str(value)


def difference_words(row: Row, variant: str) -> str:
    """Return a variant's difference from the base: `−41 %`, `2.3×`, or in points for shares."""
    found = row["differences"][variant]
    if found is None:
        return ""
    if row["unit"] == "share":
        return f"{signed(found['absolute'] * 100)}{NBSP}points"
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


def signed(value: float) -> str:
    """Return a number with its sign, a real minus, and 0 without any."""
    text = number(abs(float(value)))
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
