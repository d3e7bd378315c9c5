"""Distributions that a synthetic workload is made of; the unit is that of the field they stand in.

`min` and `max` truncate explicitly: a draw outside is drawn again, never moved to the limit.
"""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simserve.errors import ScenarioError

_ROUNDS = 1000
"""Redraws before a truncation is called unreachable."""


class Part(BaseModel):
    """Base of all parts of a synthetic workload: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Bounded(Part):
    min: float | None = Field(default=None, description="Draws below are drawn again.")
    max: float | None = Field(default=None, description="Draws above are drawn again.")

    @model_validator(mode="after")
    def _ordered(self) -> _Bounded:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    def _once(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, n: int, floor: float = -math.inf) -> NDArray[np.float64]:
        """Return float64[n]; draws outside [min, max], or below `floor`, are drawn again."""
        low = max(floor, -math.inf if self.min is None else self.min)
        high = math.inf if self.max is None else self.max
        values = self._once(rng, n)
        for _ in range(_ROUNDS):
            outside = (values < low) | (values > high)
            if not outside.any():
                return values
            values[outside] = self._once(rng, int(outside.sum()))
        raise ScenarioError(f"{self!r}: draws do not reach [{low:g}, {high:g}]: widen min and max")


class Constant(Part):
    """Always the same value."""

    kind: Literal["constant"]
    value: float = Field(ge=0, description="The value.")

    def draw(self, rng: np.random.Generator, n: int, floor: float = -math.inf) -> NDArray[np.float64]:
        """Return the value n times; raises `ScenarioError` if it is below `floor`."""
        if self.value < floor:
            raise ScenarioError(f"constant {self.value:g} is below the least possible value {floor:g}")
        return np.full(n, self.value)


class Uniform(Part):
    """Equally likely between two limits."""

    kind: Literal["uniform"]
    min: float = Field(ge=0, description="Least value.")
    max: float = Field(ge=0, description="Greatest value.")

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    def draw(self, rng: np.random.Generator, n: int, floor: float = -math.inf) -> NDArray[np.float64]:
        """Return float64[n]; raises `ScenarioError` if min is below `floor`."""
        if self.min < floor:
            raise ScenarioError(f"uniform min {self.min:g} is below the least possible value {floor:g}")
        return rng.uniform(self.min, self.max, n)


class Lognormal(_Bounded):
    """Log-normal, given by two of its figures (before truncation): p50 and p90, or p50 and mean."""

    kind: Literal["lognormal"]
    p50: float = Field(gt=0, description="Median.")
    p90: float | None = Field(default=None, gt=0, description="90th percentile.")
    mean: float | None = Field(default=None, gt=0, description="Mean.")

    @model_validator(mode="after")
    def _two_figures(self) -> Lognormal:
        if (self.p90 is None) == (self.mean is None):
            raise ValueError("a lognormal needs p50 and exactly one of p90 and mean")
        other = self.mean if self.p90 is None else self.p90
        if other is not None and other < self.p50:
            raise ValueError(f"p90 and mean of a lognormal are not below p50 ({other:g} < {self.p50:g})")
        return self

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        if self.p90 is not None:
            return math.log(self.p90 / self.p50) / NormalDist().inv_cdf(0.9)
        return math.sqrt(2 * math.log((self.mean or self.p50) / self.p50))

    def _once(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return self.p50 * np.exp(self.sigma * rng.standard_normal(n))


class Exponential(_Bounded):
    """Exponential with this mean (before truncation)."""

    kind: Literal["exponential"]
    mean: float = Field(gt=0, description="Mean.")

    def _once(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        return rng.exponential(self.mean, n)


class Quantiles(_Bounded):
    """Empirical: the inverse of the distribution function, straight between the given points."""

    kind: Literal["quantiles"]
    points: tuple[tuple[float, float], ...] = Field(
        description="Pairs of probability and value, e.g. [[0, 1], [0.5, 120], [0.9, 400], [1, 1000]]; "
        "the first probability is 0, the last 1, both columns ascend."
    )

    @model_validator(mode="after")
    def _ascending(self) -> Quantiles:
        chances = [chance for chance, _ in self.points]
        values = [value for _, value in self.points]
        if len(self.points) < 2 or chances[0] != 0 or chances[-1] != 1:
            raise ValueError("points must go from probability 0 to probability 1")
        if any(b <= a for a, b in pairwise(chances)):
            raise ValueError("the probabilities of points must ascend")
        if any(b < a for a, b in pairwise(values)):
            raise ValueError("the values of points must not descend")
        return self

    def _once(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        chances, values = zip(*self.points, strict=True)
        return np.interp(rng.random(n), chances, values)


def _not_a_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(
            f"found {value}, allowed: a mapping with a kind, for example {{kind: constant, value: {value}}}"
        )
    return value


Distribution = Annotated[
    Annotated[Constant | Uniform | Lognormal | Exponential | Quantiles, Field(discriminator="kind")],
    BeforeValidator(_not_a_number),
]
