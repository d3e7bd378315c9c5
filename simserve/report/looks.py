"""How each run of a comparison is drawn, wherever it appears."""

from __future__ import annotations

from typing import NamedTuple

COLOURS = ("ink", "accent", "queue", "decode", "requeue", "other", "sky", "olive")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "diamond", "square", "triangle-up")


class Look(NamedTuple):
    """How a run is drawn wherever it appears."""

    name: str
    colour: str
    """A name of the page's palette."""
    dash: str

    @property
    def marker(self) -> str:
        """The symbol of the run's points: another shape where its colour returns."""
        return MARKERS[DASHES.index(self.dash)]

    @property
    def border(self) -> str:
        """The nearest CSS border style of the line, for keys in the text."""
        return {"solid": "solid", "dot": "dotted"}.get(self.dash, "dashed")


def looks(names: list[str]) -> list[Look]:
    """Return a look for each run: ink is the base's, others return with another dash after seven."""
    base, *colours = COLOURS
    wide = len(colours)
    others = [Look(n, colours[i % wide], DASHES[i // wide % 4]) for i, n in enumerate(names[1:])]
    return [Look(n, base, DASHES[0]) for n in names[:1]] + others
