"""How often experts are picked, per layer: uniform, Zipf, Dirichlet, power law, a histogram, a recording.

Every model gives pick shares (see `picks`), float64[layers, experts]. Which expert is the popular one differs
from layer to layer: ranks are shuffled per layer with the seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from simserve.errors import ScenarioError, TraceError
from simserve.experts.placement import Float64, pick_shares, shares_of_counts
from simserve.registry import Registry
from simserve.units import NS_PER_S

# An expert-load trace of our own: rows (time_s, layer, expert, count), as CSV or Parquet.
#
# A count is the picks of an expert in a layer since the time before (rows of 0 may be left out). Shares of an
# interval hold from its time until the next. Layers are numbered from 0 over the MoE layers.

COLUMNS = ("time_s", "layer", "expert", "count")


@dataclass(frozen=True)
class Recording:
    """Counts by interval."""

    start_ns: NDArray[np.int64]
    """When each interval begins, int64[intervals], ascending; the first holds from the start of a run."""
    counts: NDArray[np.float64]
    """float64[intervals, layers, experts]."""


def read_recording(path: Path, layers: int, experts: int) -> Recording:
    """Read a trace; raises `TraceError` with the row for whatever does not fit the model."""
    import pandas as pd  # slow to import, and hardly any run has such a trace

    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as an expert-load trace: {error}") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise TraceError(
            f"{path}: an expert-load trace has the columns {', '.join(COLUMNS)}; no {missing[0]}"
        )
    if not len(table):
        raise TraceError(f"{path}: no rows")
    columns: dict[str, Any] = {
        name: np.asarray(pd.to_numeric(table[name], errors="coerce"), np.float64) for name in COLUMNS
    }
    for name, top in (("time_s", np.inf), ("layer", layers), ("expert", experts), ("count", np.inf)):
        values = columns[name]
        whole = name == "time_s" or np.equal(np.mod(values, 1), 0)
        bad = ~(np.isfinite(values) & (values >= 0) & (values < top) & whole)
        if bad.any():
            row = int(np.argmax(bad))
            allowed = f"below {top:g}" if np.isfinite(top) else "0 or more"
            raise TraceError(f"{path}: row {row + 1}: {name} = {table[name].iloc[row]}, allowed: {allowed}")
    times, interval = np.unique(columns["time_s"], return_inverse=True)
    counts = np.zeros((len(times), layers, experts))
    place = (interval, columns["layer"].astype(int), columns["expert"].astype(int))
    np.add.at(counts, place, columns["count"])
    empty = np.argwhere(counts.sum(axis=2) == 0)
    if len(empty):
        number, layer = empty[0]
        raise TraceError(f"{path}: layer {layer} has no picks at time_s = {times[number]:g}")
    return Recording(np.rint(times * NS_PER_S).astype(np.int64), counts)


POPULARITIES: Registry[type] = Registry("expert load", "simserve.experts")


class Popularity(BaseModel, ABC):
    """Base of the models: their settings are frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @abstractmethod
    def shares(self, layers: int, experts: int, topk: float, seed: int) -> Float64:
        """Return the probability that a token picks each expert, float64[layers, experts]."""

    def recording(self, layers: int, experts: int) -> Recording | None:
        """Return a recording that says how shares change with time, if this is one."""
        return None


class Drawn(Popularity):
    """Picks drawn one after the other, without putting back, by weights."""

    @abstractmethod
    def weights(self, layers: int, experts: int, random: np.random.Generator) -> Float64:
        """Return relative chances of the first pick, float64[layers, experts]."""

    def shares(self, layers: int, experts: int, topk: float, seed: int) -> Float64:
        """Return the probability that a token picks each expert, float64[layers, experts]."""
        random = np.random.default_rng([seed, 0x6578])
        return pick_shares(self.weights(layers, experts, random), topk)


@POPULARITIES.register("uniform")
class Uniform(Drawn):
    """Every expert is as likely as any other."""

    def weights(self, layers: int, experts: int, random: np.random.Generator) -> Float64:
        """Return ones."""
        return np.ones((layers, experts))


@POPULARITIES.register("zipf")
class Zipf(Drawn):
    """The r-th most popular expert has weight r^-s."""

    s: Annotated[float, Field(ge=0, le=10)] = Field(description="Exponent; 0 = uniform.")

    def weights(self, layers: int, experts: int, random: np.random.Generator) -> Float64:
        """Return r^-s in an order of its own for each layer."""
        return random.permuted(np.tile(np.arange(1.0, experts + 1) ** -self.s, (layers, 1)), axis=1)


@POPULARITIES.register("dirichlet")
class Dirichlet(Drawn):
    """Weights drawn from a symmetric Dirichlet distribution."""

    concentration: Annotated[float, Field(gt=0, le=1e6)] = Field(
        description="Large: nearly uniform; below 1: few experts take most."
    )

    def weights(self, layers: int, experts: int, random: np.random.Generator) -> Float64:
        """Return one draw per layer (never quite zero)."""
        draws = random.standard_gamma(self.concentration, (layers, experts))
        return np.maximum(draws, 1e-9 * self.concentration)


@POPULARITIES.register("power_law")
class PowerLaw(Drawn):
    """Weights drawn from the density x^-alpha between 1 and `spread`."""

    alpha: Annotated[float, Field(gt=0, le=10)] = Field(
        description="Exponent of the density: the smaller, the heavier the tail (1.01 and 1.2 are common)."
    )
    spread: Annotated[float, Field(gt=1, le=1e9)] = Field(
        256.0, description="Largest weight, as a multiple of the smallest."
    )

    def weights(self, layers: int, experts: int, random: np.random.Generator) -> Float64:
        """Return independent draws by inversion."""
        level = random.random((layers, experts))
        power = 1.0 - self.alpha
        if abs(power) < 1e-9:
            return self.spread**level
        return (1.0 + level * (self.spread**power - 1.0)) ** (1.0 / power)


@POPULARITIES.register("histogram")
class Histogram(Popularity):
    """Measured picks: one row for all layers, or one row per MoE layer."""

    counts: Annotated[tuple[tuple[float, ...], ...], Field(strict=False, min_length=1)] = Field(
        description="Picks of each expert: one list per layer, or a single one that every layer gets in an "
        "order of its own."
    )

    def shares(self, layers: int, experts: int, topk: float, seed: int) -> Float64:
        """Return the counts as shares; raises `ScenarioError` if there are not as many as experts."""
        _check_rows(self.counts, layers, experts, "expert_load: counts")
        counts = np.array(self.counts, np.float64)
        if len(counts) == 1 and layers > 1:
            random = np.random.default_rng([seed, 0x6578])
            counts = random.permuted(np.repeat(counts, layers, axis=0), axis=1)
        return shares_of_counts(counts, topk, "expert_load: counts")


@POPULARITIES.register("trace")
class Recorded(Popularity):
    """An expert-load trace: shares that change with time as recorded (see docs/moe.md for the format)."""

    path: str = Field(description="A CSV or Parquet file with the columns time_s, layer, expert, count.")

    def recording(self, layers: int, experts: int) -> Recording:
        """Return the trace; raises `TraceError` if it does not fit."""
        return read_recording(Path(self.path), layers, experts)

    def shares(self, layers: int, experts: int, topk: float, seed: int) -> Float64:
        """Return the shares of the first interval."""
        return shares_of_counts(self.recording(layers, experts).counts[0], topk, self.path)


def _check_rows(rows: tuple[tuple[float, ...], ...], layers: int, experts: int, where: str) -> None:
    for number, row in enumerate(rows):
        if len(row) != experts:
            raise ScenarioError(f"{where}: row {number} has {len(row)} counts for {experts} experts")
    if len(rows) not in (1, layers):
        raise ScenarioError(f"{where}: {len(rows)} rows for {layers} MoE layers; give 1 or {layers}")


def popularity_of(value: dict[str, Any]) -> Popularity:
    """Return the model that a scenario names by `kind`, with its settings; raises pydantic's errors."""
    settings = {key: item for key, item in value.items() if key != "kind"}
    return POPULARITIES.get(str(value.get("kind", "uniform"))).model_validate(settings)
