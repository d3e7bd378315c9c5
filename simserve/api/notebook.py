"""What a notebook shows of a result: the answer, a table, and two small charts as pictures."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from simserve.report.figures import inline_svg
from simserve.report.page import Figure

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CHARTS = 2
WIDTH_PX = 360


def shown(answer: str, table: DataFrame, charts: Iterable[Figure]) -> str:
    """Return the HTML; the charts need no script."""
    rows = table.to_html(float_format="{:.4g}".format, border=0)
    pictures = "".join(
        f'<figure style="margin:0;width:{WIDTH_PX}px">{_scaled(inline_svg(chart))}</figure>'
        for chart in list(charts)[:MOST_CHARTS]
    )
    flow = f'<div style="display:flex;flex-wrap:wrap;gap:12px">{pictures}</div>' if pictures else ""
    return f"<p><strong>{escape(answer)}</strong></p>{rows}{flow}"


def _scaled(svg: str) -> str:
    """Let a chart be as wide as what it stands in; its view box keeps the shape."""
    return svg.replace("<svg ", '<svg style="width:100%;height:auto" ', 1)
