"""Names of settings as tables and charts show them: `tp` for `pools.0.tp` where no other setting ends so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return what to call each path: its last part, or all of it where another path ends alike."""
    last = {path: path.rpartition(".")[2] for path in paths}
    uses = Counter(last.values())
    return {path: name if uses[name] == 1 else path for path, name in last.items()}
