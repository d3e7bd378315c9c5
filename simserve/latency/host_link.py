"""The link between a GPU and its host's memory, where `simserve profile run` measured it (`host_copy`)."""

from __future__ import annotations

from typing import NamedTuple

from simserve.latency.profiles import ProfileStore


class HostLink(NamedTuple):
    """What one GPU's link achieves from and to pinned memory."""

    read_gb_s: float
    """From the host to the GPU, by the largest copy measured."""
    write_gb_s: float
    latency_us: float
    """A copy of next to nothing from the host."""


def measured_host_link(profiles: ProfileStore, gpu: str) -> HostLink | None:
    """Return the measured link of a GPU, None if there is no table with copies both ways."""
    table = profiles.table(gpu, "host_copy")
    if table is None:
        return None
    ways = [table.select(direction=direction, pinned=1) for direction in ("h2d", "d2h")]
    if not all(len(rows) for rows in ways):
        return None
    speeds = []
    for rows in ways:
        largest = int(rows.numbers("bytes").argmax())
        speeds.append(float(rows.numbers("bytes")[largest] / rows.numbers("latency_us")[largest] / 1000))
    return HostLink(speeds[0], speeds[1], float(ways[0].numbers("latency_us").min()))
