"""Tables of errors as Markdown, put between marks in a page: `make fidelity` remakes docs/fidelity.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from simserve.errors import ScenarioError
from simserve.report.run.headline import FAR, published_words


def replace_block(page: Path, name: str, text: str) -> None:
    """Replace what stands between the marks `name` and `/name`; raises `ScenarioError` without them."""
    content = page.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if content.count(start) != 1 or content.count(end) != 1:
        raise ScenarioError(f"{page}: needs the marks {start.strip()} and {end} once each")
    head, _, rest = content.partition(start)
    _, _, tail = rest.partition(end)
    page.write_text(f"{head}{start}{text}{end}{tail}", encoding="utf-8")


def measured_block(facts: dict[str, Any]) -> str:
    """Return the tables of `simserve validate measured --json`."""
    names = list(facts["median_ape"])
    rows = []
    for one in facts["experiments"]:
        stage = "" if one["stage"] < 0 else f", stage {one['stage']}"
        rows.append(
            [_short(one["id"]) + stage, *(f"{one['metrics'][name]['err_pct']:+.1f}" for name in names)]
        )
    rows.append(
        ["**median of absolute errors**", *(f"**{facts['median_ape'][name]:.1f}**" for name in names)]
    )
    parts = [markdown_table(["error in %", *(name.replace("_", " ") for name in names)], rows)]
    overloads = [
        [
            _short(one["id"]),
            f"{one['failed']['sim']:.0f}",
            f"{one['failed']['real']:.0f}",
            f"{one['ttft_mean_s']['sim']:.0f}",
            f"{one['ttft_mean_s']['real']:.0f}",
            one["verdict"],
        ]
        for one in facts["overloads"]
    ]
    if overloads:
        head = ["overload", "gave up, sim", "gave up, real", "TTFT s, sim", "TTFT s, real", "verdict"]
        parts.append(markdown_table(head, overloads))
    cold = [
        [_short(key), *(f"{it[side]:.2f}" for it in (one["median"], one) for side in ("sim", "real"))]
        for key, one in facts["cold"].items()
    ]
    head = ["TTFT, cold over warm", "median, sim", "median, real", "mean, sim", "mean, real"]
    parts.append(markdown_table(head, cold))
    for key, bins in facts["steps"].items():
        steps = [
            [
                f"{b['decodes_from']}+",
                str(b["n"]),
                f"{b['sim_ms']:.2f}",
                f"{b['real_ms']:.2f}",
                f"{b['err_pct']:+.1f}",
            ]
            for b in bins
            if b["n"] >= 10
        ]
        parts.append(
            markdown_table([f"{_short(key)}: decodes", "intervals", "sim ms", "real ms", "error %"], steps)
        )
    return "\n".join(parts)


def published_block(facts: dict[str, Any]) -> str:
    """Return the tables of `simserve validate published --json`: medians by deployment, what was not run."""
    names = list(facts["median_ape"])
    count = dict.fromkeys(facts["median_ape_by_group"], 0)
    for row in facts["rows"]:
        count[row["group"]] += 1
    rows = [
        [
            group.replace("|", " "),
            str(count[group]),
            *(f"{errors[name]:.1f}" if name in errors else "" for name in names),
        ]
        for group, errors in facts["median_ape_by_group"].items()
        if errors
    ]
    if len(rows) > 1:
        curves = [errors for errors in facts["median_ape_by_group"].values() if errors]
        middle = {name: median(it[name] for it in curves if name in it) for name in names}
        for title, number, errors in (
            ("median of rows", len(facts["rows"]), facts["median_ape"]),
            ("median of curves", len(curves), middle),
        ):
            rows.append([f"**{title}**", f"**{number}**", *(f"**{errors[name]:.1f}**" for name in names)])
    reasons: dict[str, int] = {}
    for one in facts["not_run"]:
        reasons[one["reason"]] = reasons.get(one["reason"], 0) + 1
    left = [[str(number), reason] for reason, number in reasons.items()]
    head = ["median absolute error in %", "rows", *(name.replace("_", " ") for name in names)]
    parts = [markdown_table(head, rows)] if rows else []
    return "\n".join([*parts, markdown_table(["rows not run", "because"], left)] if left else parts)


def _short(name: str) -> str:
    """Return an experiment's id without source set and date."""
    return name.split("-", 3)[-1] if name.count("-") > 3 else name


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(lines) + "\n"


def golden_block(compared: dict[str, tuple[int, int]], committed: set[str], printed: str) -> str:
    """Return what `simserve validate golden tests/conformance` prints, and all logs by workload.

    `compared` maps `folder/workload` to steps and equal steps; `committed` are those that ship.
    """
    steps, equal = (sum(counts[i] for counts in compared.values()) for i in (0, 1))
    parts = [
        f"```\n$ simserve validate golden tests/conformance\n{printed}```\n",
        f"The {len(committed)} logs in `tests/conformance` are part of the repository and are replayed by\n"
        "its tests; the short ones, h1 to h4, are no recordings, but rules worked out by hand\n"
        "(`tests/engines/test_rules_by_hand.py`).\n"
        f"The whole set is {len(compared)} logs: {steps:,} steps, of which {equal:,} are equal.\n"
        "In the tables: steps equal / steps; `*`: in `tests/conformance`.\n",
    ]
    for engine, title in (("vllm", "vLLM"), ("sglang", "SGLang")):
        folders = sorted({name.split("/")[0] for name in compared if name.startswith(engine)}, reverse=True)
        workloads = sorted({name.split("/")[1] for name in compared if name.startswith(engine)})
        rows = [
            [one, *(_log_cell(f"{folder}/{one}", compared, committed) for folder in folders)]
            for one in workloads
        ]
        parts.append(markdown_table([f"{title} workload", *(f.split("-")[1] for f in folders)], rows))
    return "\n".join(parts)


def _log_cell(name: str, compared: dict[str, tuple[int, int]], committed: set[str]) -> str:
    if name not in compared:
        return ""
    steps, equal = compared[name]
    return f"{equal} / {steps}{'*' if name in committed else ''}"


def effects_block(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return published figures beside ours by scenario, and why some differ by more than a fifth."""
    rows = []
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, figures in found.items():
        for one in published_words(figures):
            ratio = "-" if one["ratio"] is None else f"{one['ratio']:.2f}"
            rows.append([name, one["figure"], one["published_text"], one["ours_text"], ratio])
            if one["differs"] and (one["ratio"] is None or abs(one["ratio"] - 1) > FAR):
                reasons.setdefault((name, one["differs"].strip()), []).append(f"{one['figure']} ({ratio})")
    why = [f"- {name}: {'; '.join(figures)}. {reason}\n" for (name, reason), figures in reasons.items()]
    sources = [f"- {name}: {text}\n" for name, figures in found.items() for text in _sources(figures)]
    table = markdown_table(["effect", "figure", "published", "ours", "ours / published"], rows)
    return (
        f"{table}\nWhere ours is off by more than a fifth:\n\n{''.join(why)}\nSources:\n\n{''.join(sources)}"
    )


def _sources(figures: list[dict[str, Any]]) -> dict[str, None]:
    return dict.fromkeys(one["source"].strip() for one in figures)
