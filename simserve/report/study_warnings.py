"""What the runs of a study warned of, each line once."""

from __future__ import annotations

from collections import Counter
from typing import Any

MOST = 5


def study_warnings(study: dict[str, Any]) -> list[str]:
    """Return the warnings of a study's points with how many points each is about, the rest counted."""
    rows = study["points"] if "points" in study else [*study["feasible"], *study["missed"]]
    rows = [row for row in rows if "warnings" in row]
    counts = Counter(line for row in rows for line in dict.fromkeys(row["warnings"]))
    found = [
        line if n == len(rows) else f"{line} ({n:,} of {len(rows):,} deployments)"
        for line, n in counts.items()
    ]
    more = len(found) - MOST
    return found[:MOST] + ([f"{more:,} more warnings of single runs are in study.json"] if more > 0 else [])
