"""The errors that simserve raises on purpose.

`UserError` and its children mean that the user's input is wrong: the command line prints them and exits
with code 2. They carry what they are about as data (key, value, what is allowed, place), so that whoever
knows the file can add the line without reading the sentence. `InvariantError` means that simserve itself
is wrong: it carries the replica, the request and the simulated time, and exits with code 1.

All arguments are positional and stand in `args`, because SimPy and pickle rebuild exceptions from these.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Self


class SimserveError(Exception):
    """Base of everything that simserve raises on purpose."""


class UserError(SimserveError):
    """The user's input is wrong; the message names place, value, what is allowed and the nearest match."""

    def __init__(
        self,
        message: str = "",
        key: str = "",
        value: Any = None,
        allowed: str = "",
        place: str = "",
    ) -> None:
        """Without a key, `message` is a sentence; with one, the rest of a sentence that begins with the key.

        `key` is a setting's name, dotted from where it was checked (`tp`, `afd.ffn_gpus`); `value` what was
        found there (None: not worth saying); `allowed` what could stand there instead; `place` the file with
        its line, or the option of the command. Str joins them: `demo.yaml:7: pools[0].tp = 3 does not
        divide the 32 attention heads; allowed: 1, 2, 4`.
        """
        super().__init__(message, key, value, allowed, place)
        self.message, self.key, self.value, self.allowed, self.place = message, key, value, allowed, place

    @property
    def problems(self) -> Sequence[UserError]:
        """The problems that this error tells of: itself, unless it joins several."""
        return (self,)

    def at(self, place: str, key: str | None = None) -> Self:
        """Return this error with its place, and with the key's whole path where that is known."""
        return type(self)(self.message, self.key if key is None else key, self.value, self.allowed, place)

    @property
    def brief(self) -> str:
        """The sentence without its place and without what is allowed."""
        subject = self.key if self.value is None else f"{self.key} = {shown(self.value)}"
        return " ".join(part for part in (subject if self.key else "", self.message) if part)

    def __str__(self) -> str:
        sentence = self.brief
        if self.allowed:
            sentence += f"{'; ' if self.message else ', '}allowed: {self.allowed}"
        return f"{self.place}: {sentence}" if self.place else sentence


class ScenarioError(UserError):
    """A scenario file, or a `--set` option, is wrong."""


class SettingError(ScenarioError, ValueError):
    """Settings of one mapping contradict each other; a ValueError, as validators of pydantic must raise."""


class TraceError(UserError):
    """A trace file is wrong: the message names file, line and value."""


class ProfileError(UserError):
    """A kernel profile is missing, malformed or does not cover what was asked."""


class SeveralErrors(ScenarioError):
    """Several problems, each with a line of its own."""

    def __init__(self, *problems: UserError) -> None:
        super().__init__()
        self.args = problems

    @property
    def problems(self) -> Sequence[UserError]:
        """The problems, in the order in which they were found."""
        return self.args

    def at(self, place: str, key: str | None = None) -> Self:
        """Return all of them with that place."""
        return type(self)(*(one.at(place, key) for one in self.problems))

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class InvariantError(SimserveError):
    """A law of the simulation was broken; names replica, request and simulated time."""


def together(problems: Iterable[UserError]) -> UserError:
    """Return one error about all `problems` (at least one), each said once; an only one stays as it is."""
    flat = [one for problem in problems for one in problem.problems]
    different = list({str(one): one for one in flat}.values())
    return different[0] if len(different) == 1 else SeveralErrors(*different)


def shown(value: Any) -> str:
    """Write a setting's value as messages do: `1,024`, `true`, `marlin`, `[128, 128]`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


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
