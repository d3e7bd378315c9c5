"""The table of published figures that `simserve run` prints under a scenario that names some."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group
from rich.text import Text

from simserve.cli.fitted import FittedTable


def published_table(folder: Path) -> Group | None:
    """Return the published figures and ours, from the stored runs of `folder`; None if it names none."""
    from simserve.metrics.comparison import read_comparison
    from simserve.metrics.published import published_rows
    from simserve.metrics.store import read_results
    from simserve.report.published_words import FAR, published_words

    comparison = read_comparison(folder)
    rows = comparison.table["published"] if comparison else published_rows({"base": read_results(folder)})
    rows = published_words(rows)
    if not rows:
        return None
    table = FittedTable(title="Published figures", title_style="bold")
    table.add_column("figure")
    for name in ("published", "ours", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["figure"], row["published_text"], row["ours_text"], ratio)
    sources = dict.fromkeys(f"Source: {row['source']}" for row in rows)
    far = (row for row in rows if row["differs"] and (row["ratio"] is None or abs(row["ratio"] - 1) > FAR))
    reasons = dict.fromkeys(f"Why ours differs: {row['differs']}" for row in far)
    return Group(table, *map(Text, (*sources, *reasons)))
