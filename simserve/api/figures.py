"""Nested figures, such as those of a summary, that can also be read with dots."""

from __future__ import annotations

from typing import Any

from simserve.errors import nearest


class Figures(dict[str, Any]):
    """A dictionary whose keys are attributes too: `summary.whole.ttft_ms.p99`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no figure {name!r}{nearest(name, self)}; has: {', '.join(self)}") from None

    def __getitem__(self, name: str) -> Any:
        return dotted(super().__getitem__(name))

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self])


def dotted(value: Any) -> Any:
    """Return a mapping, or the mappings in a list, as `Figures`; anything else as it is."""
    if isinstance(value, dict) and not isinstance(value, Figures):
        return Figures(value)
    return [dotted(one) for one in value] if isinstance(value, list) else value
