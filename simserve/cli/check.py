"""What `simserve run FILE --check` prints: what would be simulated, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def check_lines(name: str, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the requests of a deployment and, by pool, its shape, memory per GPU and room for KV."""
    yield f"{name}: {manifest['trace']['requests']:,} requests would be simulated"
    for line in columns_lines(manifest["trace"]):
        yield f"  {line}"
    for pool in manifest["pools"]:
        shape = ", ".join(f"{key} {pool[key]}" for key in ("replicas", "tp", "pp", "dp"))
        yield f"  pool {pool['name']}: {pool['gpu']}, {shape}"
        for line in pool["ledger"]:
            yield f"    {line['bytes'] / 1e9:8.2f} GB per GPU: {line['name']}"
        whose = "replica" if pool["dp"] == 1 else "data-parallel rank"
        yield f"    {pool['kv_tokens']:,} KV tokens in each {whose}"


def columns_lines(trace: Mapping[str, Any]) -> Iterator[str]:
    """Yield which columns of an own file were taken for what, if the reader had to choose."""
    if columns := trace.get("columns"):
        taken = ", ".join(f"{role}: {column}" for role, column in columns.items())
        yield f"{trace['name']}, by its column names: {taken}"
