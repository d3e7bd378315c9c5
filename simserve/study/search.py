"""A search by optuna: it proposes points, the campaign runs them, and learns what they gave (ask and tell).

Points are asked for a few at a time, a number that does not depend on the workers. What optuna knows lies in
a file of the study's folder, or in a database by URL, where several processes, each with a folder of its own,
work on one search together. Runs are kept by the campaign as those of any study.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simserve.deploy.build import slo_of
from simserve.errors import ScenarioError, UserError, nearest
from simserve.metrics.targets import targets_of
from simserve.scenario.load import LoadedScenario, changed
from simserve.scenario.study_spec import SearchSpec, Span
from simserve.study.campaign import Campaign, facts_of, priced, study_key
from simserve.study.files import columns
from simserve.study.long_enough import missing_words, run_long_enough
from simserve.study.plan import constrained
from simserve.study.points import summarised

if TYPE_CHECKING:
    from optuna import Study, Trial


# Pareto fronts and the volume that they beat, for any number of aims; less is better.

Cost = tuple[float, ...]


def unbeaten_rows(costs: Mapping[int, Cost]) -> list[int]:
    """Return the indices of the rows that no other row beats (equal ones: the first)."""
    front = []
    for index, cost in costs.items():
        beaten = any(
            all(a <= b for a, b in zip(other, cost, strict=True)) and (other != cost or rival < index)
            for rival, other in costs.items()
            if rival != index
        )
        if not beaten:
            front.append(index)
    return front


def hypervolume(front: Sequence[Cost]) -> float:
    """Return the volume of the unit cube that lies above at least one of the points.

    Slices along the last aim (Knowles 2002); exact, and fast enough for the fronts of a few hundred trials.
    """
    inside = [cost for cost in front if all(c < 1 for c in cost)]
    if not inside:
        return 0.0
    if len(inside[0]) == 1:
        return 1 - min(cost[0] for cost in inside)
    ordered = sorted(inside, key=lambda cost: cost[-1])
    volume = 0.0
    for i, cost in enumerate(ordered):
        depth = (ordered[i + 1][-1] if i + 1 < len(ordered) else 1.0) - cost[-1]
        if depth > 0:
            slice_ = {j: one[:-1] for j, one in enumerate(ordered[: i + 1])}
            volume += depth * hypervolume([slice_[j] for j in unbeaten_rows(slice_)])
    return volume


ASKED = 4
"""Points that are asked for at a time."""
EMBEDDED = "search.log"
DATABASE_TRIES = 6
_RACES = ("IntegrityError", "ProgrammingError", "StorageInternalError", "UniqueViolation")


def require_search(it: LoadedScenario) -> SearchSpec:
    """Return the search block of a scenario; raises `ScenarioError` for aims that are no columns."""
    spec = it.scenario.search
    if spec is None:
        raise ScenarioError(
            f"{it.document.source}: has no search; add one, such as "
            "search: {over: {pools.0.tp: [1, 2, 4]}, maximise: [goodput_per_gpu]}"
        )
    for side in ("minimise", "maximise"):
        for i, name in enumerate(getattr(spec, side)):
            if name not in columns():
                place = it.document.where(("search", side, i))
                known = ", ".join(columns())
                hint = nearest(name, columns())
                raise ScenarioError(f"no column {name!r}{hint}", allowed=known, place=place)
    for path, values in spec.over.items():
        first = values.low if isinstance(values, Span) else values[0]
        changed(it, {path: round(first) if isinstance(values, Span) and values.whole else first})
    return spec


def open_study(it: LoadedScenario, spec: SearchSpec, folder: Path, url: str | None) -> Study:
    """Return optuna's study in the folder's file or at a database's URL, new or as it was left.

    Raises `ScenarioError` if optuna is missing or the database cannot be reached.
    """
    try:
        import optuna
    except ImportError as error:
        raise ScenarioError(
            "simserve search needs optuna, which is not installed; in your clone: pip install -e '.[search]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ways = optuna.study.StudyDirection
    directions = [ways.MINIMIZE] * len(spec.minimise) + [ways.MAXIMIZE] * len(spec.maximise)
    storage = _storage(folder, url)
    study = optuna.create_study(
        study_name=study_key(it, "search"), storage=storage, directions=directions, load_if_exists=True
    )
    study.sampler = _sampler(spec, it.scenario.seed + len(study.trials))
    if url is None:  # nobody else is at work here: what was running is lost
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.enqueue_trial(trial.params)
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
    return study


def _storage(folder: Path, url: str | None) -> Any:
    import optuna

    if url is None:
        from optuna.storages.journal import JournalFileBackend

        return optuna.storages.JournalStorage(JournalFileBackend(str(folder / EMBEDDED)))
    for attempt in range(DATABASE_TRIES):
        try:
            return optuna.storages.RDBStorage(url)
        except ImportError as error:
            raise ScenarioError(f"--storage {_hidden(url)}: its driver is missing: {error}") from error
        except Exception as error:
            if not type(error).__module__.startswith(("sqlalchemy", "psycopg", "optuna")):
                raise
            # Two processes that come to a new database together both make its tables, and one of them fails.
            if type(error).__name__ in _RACES and attempt + 1 < DATABASE_TRIES:
                time.sleep(0.2 * (attempt + 1))
                continue
            first = str(error).strip().splitlines()[0]
            raise ScenarioError(f"--storage {_hidden(url)}: cannot be used: {first}") from error
    raise AssertionError("the last try returns or raises")


def _hidden(url: str) -> str:
    """Return a URL without its password."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}{at}{tail}" if at else url


def _sampler(spec: SearchSpec, seed: int) -> Any:
    import optuna

    if spec.sampler == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    if spec.sampler == "nsga2":
        return optuna.samplers.NSGAIISampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def run_search(campaign: Campaign, spec: SearchSpec, study: Study) -> dict[str, Any]:
    """Search until the trials are used up; return what study.json holds."""
    import optuna

    campaign.prices = spec.prices
    first, sign = (spec.minimise[0], 1) if spec.minimise else (spec.maximise[0], -1)
    campaign.rank = lambda row: (float("inf") if row[first] is None else sign * row[first],)
    done = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.FAIL)
    while True:
        finished = len(
            [t for t in study.get_trials(deepcopy=False, states=done) if "settings" in t.user_attrs]
        )
        if finished >= spec.trials:
            return _result(campaign.it, spec, study)
        wanted = min(ASKED, spec.trials - finished)
        asked = [study.ask() for _ in range(wanted)]
        settings = [_suggested(trial, spec) for trial in asked]
        _try(campaign, spec, study, list(zip(asked, settings, strict=True)))


def _suggested(trial: Trial, spec: SearchSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, values in spec.over.items():
        if not isinstance(values, Span):
            words = [json.dumps(value) for value in values]
            found[path] = values[words.index(trial.suggest_categorical(path, words))]
        elif values.whole:
            found[path] = trial.suggest_int(path, int(values.low), int(values.high), log=values.log)
        else:
            found[path] = float(f"{trial.suggest_float(path, values.low, values.high, log=values.log):.6g}")
    return found


def _try(
    campaign: Campaign, spec: SearchSpec, study: Study, asked: list[tuple[Trial, dict[str, Any]]]
) -> None:
    import optuna

    targets = targets_of(slo_of(campaign.it.scenario))
    kept, reasons = [], {}
    for trial, settings in asked:
        try:
            reason = constrained(campaign.it, [settings], spec.where, "search")[0].reason
        except UserError as error:
            reason = str(error)
        if reason:
            reasons[trial.number] = reason
        else:
            kept.append((trial, settings))
    groups = run_long_enough(
        campaign, [settings for _, settings in kept], spec.replications, spec.longest, lambda rows: False
    )
    groups_of = {trial.number: group for (trial, _), group in zip(kept, groups, strict=True)}
    for trial, settings in asked:
        trial.set_user_attr("settings", settings)
        found = groups_of[trial.number].outcomes if trial.number in groups_of else []
        bad = next((one.reason for one in found if one.row is None), reasons.get(trial.number, ""))
        rows = [one.row for one in found if one.row is not None]
        point = summarised(rows, targets, 0.95) if rows and not bad else None
        aims = [point["means"][name] for name in (*spec.minimise, *spec.maximise)] if point else []
        values = [float(value) for value in aims if value is not None]
        if point is not None and point["needed_requests"] and point["slo"] != "missed":
            point, bad = None, missing_words(campaign.it, groups_of[trial.number], spec.longest)
        if point is None or len(values) < len(aims):
            trial.set_user_attr("reason", bad or "an aim has no value here")
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            campaign.counts.pruned += 1
            continue
        trial.set_user_attr("point", point)
        for target in point["targets"]:  # samplers prefer points that meet the SLO
            trial.set_constraint(target["name"], target["share"] - (target["low"] or 0.0))
        study.tell(trial, values)


def _result(it: LoadedScenario, spec: SearchSpec, study: Study) -> dict[str, Any]:
    trials = [t for t in study.get_trials(deepcopy=False) if "settings" in t.user_attrs]
    aims = [*spec.minimise, *spec.maximise]
    points = []
    for i, trial in enumerate(sorted(trials, key=lambda one: one.number)):
        settings, point = trial.user_attrs["settings"], trial.user_attrs.get("point")
        reason = trial.user_attrs.get("reason", "")
        status = "done" if point else "impossible"
        points.append({"point": i, "settings": settings, "status": status, "reason": reason, **(point or {})})
    good = [point for point in points if point["status"] == "done" and point["slo"] in ("met", "none")]
    costs = {point["point"]: _costs(point, spec) for point in good}
    front = unbeaten_rows(costs)
    for index in front:
        points[index]["prices"] = priced(it, points[index]["settings"], spec.prices)
    return {
        "kind": "search",
        "schema": 1,
        **facts_of(it),
        "paths": list(spec.over),
        "aims": {"minimise": spec.minimise, "maximise": spec.maximise},
        "sampler": spec.sampler,
        "replications": spec.replications,
        "confidence": 0.95,
        "targets": [target.words for target in targets_of(slo_of(it.scenario))],
        "points": points,
        "front": front,
        "hypervolume": _over_time(costs, len(points)) if len(aims) > 1 else [],
    }


def _costs(point: dict[str, Any], spec: SearchSpec) -> tuple[float, ...]:
    """Return the aims as numbers of which less is better."""
    means = point["means"]
    return tuple([means[name] for name in spec.minimise] + [-means[name] for name in spec.maximise])


def _over_time(costs: dict[int, tuple[float, ...]], n: int) -> list[float]:
    """Return the share of the box between the best and the worst values that is beaten after each point."""
    if not costs:
        return [0.0] * n
    dimensions = range(len(next(iter(costs.values()))))
    low = [min(cost[i] for cost in costs.values()) for i in dimensions]
    high = [max(cost[i] for cost in costs.values()) for i in dimensions]
    scaled = {
        index: tuple(
            (c - lo) / (hi - lo) if hi > lo else 0.0 for c, lo, hi in zip(cost, low, high, strict=True)
        )
        for index, cost in costs.items()
    }
    found: list[float] = []
    front: Sequence[tuple[float, ...]] = []
    for index in range(n):
        if index in scaled:
            kept = dict(enumerate([*front, scaled[index]]))
            front = [kept[i] for i in unbeaten_rows(kept)]
        found.append(hypervolume(front))
    return found
