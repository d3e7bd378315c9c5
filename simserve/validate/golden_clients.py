"""The clients of a golden log: who arrives at which step, and who follows whose answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class LogClients:
    """Requests that are due, by the log's step counter: at a step, or `gap` steps after another's end."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        """`requests` are the log's request lines, in order of their ids."""
        self._rows = requests
        self._due: dict[int, list[int]] = {}
        self._followers: dict[int, list[int]] = {}
        for row in requests:
            if "at" in row:
                self._due.setdefault(row["at"], []).append(row["id"])
            else:
                self._followers.setdefault(row["after"], []).append(row["id"])

    def are_due(self, t: int) -> bool:
        """Return whether somebody arrives at step `t`."""
        return t in self._due

    def arrivals(self, t: int) -> list[int]:
        """Return the ids of those who arrive at step `t`, in order, once."""
        return sorted(self._due.pop(t, []))

    def see_ends(self, ended: Iterable[int], t: int) -> None:
        """Note whose answers were complete at step `t`; their followers come some steps later."""
        for index in ended:
            for follower in self._followers.get(index, ()):
                self._due.setdefault(t + self._rows[follower]["gap"], []).append(follower)
