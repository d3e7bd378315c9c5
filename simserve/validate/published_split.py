"""Rows of published results from a prefill/decode split: the two sides and the links between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

Row = Mapping[str, str]

_SIDE = re.compile(r"(\d+)([PD]) TP(\d+)")
_LINKS = re.compile(r"(\d+)x(\d+)G")
_KINDS = ("100", "200", "400", "800")
"""Line rates of a card, in Gb/s, that a scenario can name."""


class Split(NamedTuple):
    """Replicas and tensor parallelism of both sides."""

    prefill: tuple[int, int]
    decode: tuple[int, int]


def split_of(row: Row) -> Split | None:
    """Return the sides of a row that says them plainly (`1P TP8`, `1D TP8`); None for all others."""
    sides = [_SIDE.fullmatch(row.get(f"{name}_config") or "") for name in ("prefill", "decode")]
    if row.get("mode") != "disagg" or None in sides:
        return None
    found = [(int(side[1]), int(side[3])) for side in sides if side is not None]
    return Split(*found)


def split_pools(split: Split, pool: dict[str, Any], row: Row) -> dict[str, Any]:
    """Return the pools and the transfer of a scenario; `pool` is what both sides have in common."""
    links = _LINKS.search(row.get("scheduler_settings") or "")
    named = links is not None and links[2] in _KINDS
    transfer = {"link": f"rdma_{links[2]}g", "links": int(links[1])} if links is not None and named else {}
    return {
        "pools": [
            {**pool, "name": role, "role": role, "replicas": replicas, "tp": tp}
            for role, (replicas, tp) in split._asdict().items()
        ],
        "transfer": transfer,
    }
