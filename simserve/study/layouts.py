"""The deployments that a search may choose: families that grow by equal units.

A layout turns choices (GPU, degrees, dtypes, engine options) into pools; a family is one set of choices, and
its units are replicas, or in a split the replicas of one ratio. A new layout is a file in `layout_kinds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from simserve.registry import Registry
from simserve.scenario.load import LoadedScenario
from simserve.scenario.study_spec import RatioSpec, SizeSpec

Settings = dict[str, Any]
Choices = dict[str, Any]
OF_A_SPLIT = ("transfer", "decode_router", "role_switch")


@dataclass(frozen=True)
class Family:
    """One set of choices; `pools` are those of one unit."""

    index: int
    layout: str
    choices: Choices
    pools: tuple[Settings, ...]
    keys: Settings
    """Other keys of the scenario, by path."""

    def settings(self, units: int) -> Settings:
        """Return the values by path of a deployment of so many units."""
        pools = [{**pool, "replicas": pool["replicas"] * units} for pool in self.pools]
        return {"pools": pools, **self.keys}

    @property
    def gpus(self) -> int:
        """GPUs of one unit."""
        return sum(_gpus(pool) for pool in self.pools)

    @property
    def price_per_hour(self) -> float:
        """Price of one unit."""
        return sum(_gpus(pool) * pool["price_per_gpu_hour"] for pool in self.pools)

    @property
    def words(self) -> str:
        """The choices as people write them."""
        named = [
            value if name == "layout" else f"{name} {value}"
            for name, value in self.choices.items()
            if name != "gpu"
        ]
        return ", ".join([self.choices["gpu"], *named])


def _gpus(pool: Settings) -> int:
    return pool["replicas"] * pool["tp"] * pool["pp"] * pool["dp"]


Layout = Callable[[LoadedScenario, SizeSpec, Choices], Iterator[tuple[Choices, list[Settings], Settings]]]
"""From choices to (choices, pools of one unit, other keys), one for each way to lay them out."""

LAYOUTS: Registry[Layout] = Registry("layout", "simserve.study.layouts")


def families(it: LoadedScenario, spec: SizeSpec) -> list[Family]:
    """Return every family of the space, in a fixed order."""
    found: dict[str, Family] = {}
    for choices in _choices(it, spec):
        for name in spec.layouts:
            for chosen, pools, keys in LAYOUTS.get(name)(it, spec, choices):
                found.setdefault(repr(pools), Family(len(found), name, chosen, tuple(pools), keys))
    return list(found.values())


def _choices(it: LoadedScenario, spec: SizeSpec) -> Iterator[Choices]:
    first = it.scenario.pools[0]
    space: dict[str, list[Any]] = {
        "gpu": list(spec.catalogue),
        "tp": spec.tp,
        "pp": spec.pp,
        "dp": spec.dp,
        "ep": spec.ep,
        "weights_dtype": spec.weights_dtype or [first.weights_dtype],
        "kv_dtype": spec.kv_dtype or [first.kv_dtype],
        **spec.engine,
    }
    for values in product(*space.values()):
        yield dict(zip(space, values, strict=True))


def shown(spec: SizeSpec, choices: Choices) -> Choices:
    """Return the choices that say something: those that differ between families, and the GPU and tp."""
    single = {name for name in ("pp", "dp", "ep") if getattr(spec, name) == [1]}
    single |= {name for name in ("weights_dtype", "kv_dtype") if getattr(spec, name) is None}
    return {name: value for name, value in choices.items() if name not in single}


def pool_of(it: LoadedScenario, spec: SizeSpec, choices: Choices, **more: Any) -> Settings:
    """Return one pool: what the scenario's first pool says, with the choices and `more`."""
    base = dict(it.document.data["pools"][0])
    options = {name: choices[name] for name in spec.engine}
    engine = base.get("engine") or {}
    engine = {"preset": engine} if isinstance(engine, str) else dict(engine)
    degrees = {name: choices[name] for name in ("gpu", "tp", "pp", "dp", "ep", "weights_dtype", "kv_dtype")}
    price = spec.catalogue[choices["gpu"]].price_per_gpu_hour
    pool = {**base, **degrees, "price_per_gpu_hour": price, **more}
    if options or engine:
        pool["engine"] = {**engine, **options}
    return pool


def ratio_words(ratio: RatioSpec) -> str:
    """Return a ratio of prefill to decode replicas."""
    return f"{ratio.prefill}:{ratio.decode}"


# Every replica computes prompts and answers.


@LAYOUTS.register("aggregated")
def aggregated(
    it: LoadedScenario, spec: SizeSpec, choices: Choices
) -> Iterator[tuple[Choices, list[Settings], Settings]]:
    """One pool."""
    said = shown(spec, choices)
    chosen = {"layout": "aggregated", **said} if len(spec.layouts) > 1 else said
    pool = pool_of(it, spec, choices, name="all", role="mixed", replicas=1)
    yield chosen, [pool], {key: None for key in OF_A_SPLIT if key in it.document.data}


# Prompts on some replicas, answers on others, in each of the ratios that are asked for.


@LAYOUTS.register("split")
def split(
    it: LoadedScenario, spec: SizeSpec, choices: Choices
) -> Iterator[tuple[Choices, list[Settings], Settings]]:
    """A pool of each role; KV moves as the scenario's `transfer` says, or by its defaults."""
    keys = {} if "transfer" in it.document.data else {"transfer": {"link": "rdma_400g"}}
    for ratio in spec.ratios:
        pools = [
            pool_of(it, spec, choices, name=role, role=role, replicas=getattr(ratio, role))
            for role in ("prefill", "decode")
        ]
        yield {"layout": f"split {ratio_words(ratio)}", **shown(spec, choices)}, pools, keys
