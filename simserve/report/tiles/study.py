"""The tiles of a study: the answer, the runner-up, what it rests on, and what was spared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simserve.metrics.measures import short_names
from simserve.report.run.headline import deployment_words, options_words, types_words
from simserve.report.stored import Float64
from simserve.report.study.words import aim_of, gap_words, ranked
from simserve.report.tiles.tile import BASES, JUDGED, Tile, basis_tile, course_line, share_bar
from simserve.report.warnings import ESTIMATED, basis_notices, study_warnings
from simserve.report.words import LOAD, latency, money, number, percent

Point = dict[str, Any]


def size_tiles(study: dict[str, Any]) -> list[Tile]:
    """Return the tiles of a search for the cheapest deployment."""
    work, currency = study["work"], study.get("currency", "$")
    spared = Tile(
        "Simulated",
        f"{work['simulated']:,} of {work['deployments']:,}",
        f"{work['stopped_early']:,} of them only in part",
        share_bar(work["simulated"] / max(work["deployments"], 1)),
    )
    entries = study["feasible"] or study["missed"]
    if not entries:
        return [spared]
    best, *others = entries
    words = ("Cheapest that meets the SLO", "Runner-up") if study["feasible"] else ("Nearest", "Next")
    tiles: list[Tile | None] = [
        Tile(
            words[0],
            deployment_words(best["pools"]) + types_words(best["settings"]),
            options_words(best["settings"]),
            judged="better" if study["feasible"] else "worse",
            long=True,
        ),
        Tile(
            "Price",
            f"{money(best['price_per_hour'], currency)}/h",
            f"{money(best['means']['cost_per_million_output_tokens'], currency)} per million output tokens",
        ),
    ]
    if others:
        more = others[0]["price_per_hour"] / best["price_per_hour"] - 1
        price = f"{money(others[0]['price_per_hour'], currency)}/h"
        name = deployment_words(others[0]["pools"]) + types_words(others[0]["settings"])
        tiles.append(Tile(words[1], name, f"{price}, {gap_words(more)}", long=True))
    tiles += [
        _kept(best),
        _latencies(best["means"]),
        Tile("Limited by", best["limited_by"], long=True),
        spared,
        basis_tile(basis_of(best["means"])),
    ]
    return [tile for tile in tiles if tile is not None]


def capacity_tiles(study: dict[str, Any]) -> list[Tile]:
    """Return the tiles of a capacity."""
    found, unit = study["capacity"], study["unit"]
    carried = carried_point(study)
    point = carried or study["points"][0]
    worst = _worst(study["points"][-1])
    curve = [min((t["estimate"] or 0.0 for t in p["targets"]), default=0.0) for p in study["points"]]
    tiles: list[Tile | None] = [
        Tile(
            f"Capacity, {unit}",
            number(found["estimate"] if found["estimate"] is not None else found["low"]),
            f"{number(found['low'])} to {number(found['high'])}, {percent(study['confidence'])} confidence",
            course_line(_even(study["points"], curve), "Share of requests within the SLO, by load", "accent"),
            "better" if found["low"] is not None else "worse",
        ),
    ]
    if study.get("pools"):
        where = deployment_words(study["pools"])
        tiles.append(Tile("Deployment", where, f"{study['model']}, {study['engine']}", long=True))
    if worst is not None:
        tiles.append(
            Tile(
                "Breaks first", worst["words"], f"{percent(worst['estimate'])} at the highest load", long=True
            )
        )
    tiles += [
        Tile(f"Limited by, at {number(point['load'])}", point["limited_by"], long=True),
        _latencies(point["means"], f"Latency at {number(point['load'])} {unit}"),
        _cost(point["means"], study.get("currency", "$")),
        Tile(
            "Loads tried",
            f"{len(study['points'])}",
            f"{study['replications']} runs each" if study["replications"] > 1 else "one run each",
        ),
        basis_tile(basis_of(point["means"])),
    ]
    return [tile for tile in tiles if tile is not None]


def sweep_tiles(study: dict[str, Any], done: Sequence[Point]) -> list[Tile]:
    """Return the tiles of a sweep or a search."""
    all_of_it, currency = study["points"], study.get("currency", "$")
    tried = Tile(
        "Points run",
        f"{len(done):,} of {len(all_of_it):,}",
        f"{len(all_of_it) - len(done):,} left out" if len(done) < len(all_of_it) else "none left out",
        share_bar(len(done) / max(len(all_of_it), 1)),
    )
    met = [point for point in done if point["slo"] == "met"]
    good = None
    if study["targets"]:
        good = Tile(
            "Meet the SLO", f"{len(met):,} of {len(done):,}", spark=share_bar(len(met) / max(len(done), 1))
        )
    able = ranked(study, done)
    if not able:
        return [tile for tile in (good, tried) if tile is not None]
    aim = aim_of(able)
    tied = [point for point in able if aim.shown(point, currency) == aim.shown(able[0], currency)]
    rest = [point for point in able if point not in tied]
    best = answer_of(study, done) or able[0]
    label, judged = f"Best: {aim.label}", "better" * bool(met)
    if len(tied) > 1:
        first = Tile(label, aim.shown(best, currency), f"{len(tied)} points tie", judged=judged)
        fastest = _choice("Of these, least TTFT p99", latency(best["means"].get(_TAIL)), best)
    else:
        first, fastest = _choice(label, aim.shown(best, currency), best, judged), None
    tiles: list[Tile | None] = [
        first,
        fastest,
        _choice("Runner-up", aim.shown(rest[0], currency), rest[0]) if rest else None,
        good,
        _latencies(best["means"]),
        Tile("Limited by", best["limited_by"], long=True) if best.get("limited_by") else None,
        tried,
        basis_tile(basis_of(best["means"])),
    ]
    return [tile for tile in tiles if tile is not None]


_TAIL = "ttft_ms.p99"
"""What chooses between points that tie."""


def answer_of(study: dict[str, Any], done: Sequence[Point]) -> Point | None:
    """Return the best point of a sweep; of those that tie, the one with the least p99 of TTFT."""
    able = ranked(study, done) or list(done)
    if not able:
        return None
    aim, currency = aim_of(able), study.get("currency", "$")
    tied = [point for point in able if aim.shown(point, currency) == aim.shown(able[0], currency)]
    return min(tied, key=lambda point: point["means"].get(_TAIL) or 0.0)


def basis_of(means: dict[str, Any]) -> dict[str, float]:
    """Return where the step times of a point come from, as shares of its simulated time."""
    return {name: means.get(f"{name}_share") or 0.0 for name, _ in BASES}


def study_notices(study: dict[str, Any], answer: Point | None, points: Sequence[Point]) -> list[str]:
    """Return what the reader of a study must know first: notes, warnings of runs, and estimates."""
    found = [*study.get("notes", []), *study_warnings(study)]
    if answer is not None:
        found += [notice.text for notice in basis_notices(basis_of(answer["means"]))]
    most = max((point["means"].get("estimated_share") or 0.0 for point in points), default=0.0)
    own = (answer["means"].get("estimated_share") or 0.0) if answer is not None else 0.0
    if most > max(ESTIMATED, own + 0.01):
        found.append(
            f"Of other points, up to {percent(most)} of the simulated time is extrapolated or estimated."
        )
    return found


def carried_point(study: dict[str, Any]) -> Point | None:
    """Return the highest load that is shown to be carried."""
    low = study["capacity"]["low"]
    return next((p for p in reversed(study["points"]) if low is not None and p["load"] <= low), None)


def _choice(label: str, value: str, point: Point, judged: str = "") -> Tile:
    """Return a point with its settings; the load is none of them, nobody chooses it."""
    settings = {path: v for path, v in point["settings"].items() if path.rpartition(".")[2] not in LOAD}
    names = short_names(settings)
    rows = [
        (names[path].replace("_", "_\u200b"), f"{v}", "") for path, v in settings.items()
    ]  # may break there
    return Tile(label, value, f"point {point['point']}", judged=judged, rows=rows)


def _kept(point: Point) -> Tile | None:
    worst = _worst(point)
    if worst is None or worst["estimate"] is None:
        return None
    judged = JUDGED.get(point["slo"], "")
    note = f"at least {percent(worst['low'])} shown, target {percent(worst['share'])}"
    return Tile(
        "Within the SLO",
        percent(worst["estimate"]),
        note,
        share_bar(worst["estimate"], worst["share"], judged),
    )


def _worst(point: Point) -> dict[str, Any] | None:
    """Return the target with the least to spare."""
    return min(point["targets"], key=lambda one: (one["low"] or 0.0) - one["share"], default=None)


def _latencies(means: dict[str, Any], label: str = "Latency") -> Tile:
    keys = (
        ("TTFT p50", "ttft_ms.p50"),
        ("TTFT p99", "ttft_ms.p99"),
        ("TPOT p50", "tpot_ms.p50"),
        ("ITL p99", "itl_ms.p99"),
    )
    return Tile(label, "", rows=[(words, latency(means.get(key)), "") for words, key in keys])


def _cost(means: dict[str, Any], currency: str) -> Tile | None:
    cost = means.get("cost_per_million_output_tokens")
    if cost is None:
        return None
    return Tile(
        "Cost per million output tokens",
        money(cost, currency),
        f"{money(means['price_per_hour'], currency)}/h",
    )


def _even(points: Sequence[Point], values: Sequence[float]) -> Float64:
    """Return values over evenly spaced loads, as a small chart draws them."""
    loads = np.array([point["load"] for point in points])
    return np.interp(np.linspace(loads[0], loads[-1], 60), loads, np.array(values))
