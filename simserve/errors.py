"""The errors that simserve raises on purpose.

`UserError` and its children mean that the user's input is wrong: the command line prints their one
line and exits with code 2. `InvariantError` means that simserve itself is wrong: it carries the
replica, the request and the simulated time, and exits with code 1. Messages are plain positional
arguments, because SimPy rebuilds exceptions from `args`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimserveError(Exception):
    """Base of everything that simserve raises on purpose."""


class UserError(SimserveError):
    """The user's input is wrong; the message names place, value, what is allowed and the nearest match."""


class ScenarioError(UserError):
    """A scenario file, or a `--set` option, is wrong."""


class TraceError(UserError):
    """A trace file is wrong: the message names file, line and value."""


class ProfileError(UserError):
    """A kernel profile is missing, malformed or does not cover what was asked."""


class InvariantError(SimserveError):
    """A law of the simulation was broken; names replica, request and simulated time."""


_ALIKE = 0.5, 0.75
"""Least similarity (difflib's ratio) of a suggestion with the value's first letter, and with another."""


def nearest(value: str, allowed: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the allowed word closest to `value`, or an empty string.

    A scenario's ending `.yaml` does not count as likeness, for every scenario has it.
    """
    stem = value.removesuffix(".yaml")
    words = {word.removesuffix(".yaml") if stem != value else word: word for word in allowed}
    for match in difflib.get_close_matches(stem, words, n=3, cutoff=_ALIKE[0]):
        same_start = match[:1].lower() == stem[:1].lower()
        if same_start or difflib.SequenceMatcher(None, match, stem).ratio() >= _ALIKE[1]:
            return f" (did you mean {words[match]!r}?)"
    return ""
