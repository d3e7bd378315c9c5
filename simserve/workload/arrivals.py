"""When requests (or sessions) arrive: renewal processes, and bursts between quiet spells."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simserve.units import seconds_to_ns
from simserve.workload.distributions import Part

Float64 = NDArray[np.float64]
_RATE = "Mean arrivals per second (of sessions, if there are any)."


class Poisson(Part):
    """Memoryless arrivals."""

    kind: Literal["poisson"]
    rate_per_s: float = Field(gt=0, description=_RATE)

    def times_s(self, rng: np.random.Generator, n: int) -> Float64:
        """Return n arrival times, the first at 0."""
        return _from_gaps(rng.exponential(1 / self.rate_per_s, n))


class Gamma(Part):
    """Independent gamma-distributed gaps: cv 1 is Poisson, above is burstier, below more regular."""

    kind: Literal["gamma"]
    rate_per_s: float = Field(gt=0, description=_RATE)
    cv: float = Field(gt=0, description="Coefficient of variation of the gaps.")

    def times_s(self, rng: np.random.Generator, n: int) -> Float64:
        """Return n arrival times, the first at 0."""
        return _from_gaps(_unit_gaps(rng, n, self.cv) / self.rate_per_s)


class Steady(Part):
    """Equal gaps."""

    kind: Literal["constant"]
    rate_per_s: float = Field(gt=0, description=_RATE)

    def times_s(self, rng: np.random.Generator, n: int) -> Float64:
        """Return n arrival times, the first at 0."""
        return np.arange(n) / self.rate_per_s


class Bursts(Part):
    """Two rates that alternate after exponential times: bursts (on) and quiet spells (off)."""

    kind: Literal["bursts"]
    rate_per_s: float = Field(ge=0, description="Arrivals per second in quiet spells; 0 for silence.")
    burst_rate_per_s: float = Field(gt=0, description="Arrivals per second in bursts.")
    mean_on_s: float = Field(gt=0, description="Mean length of a burst.")
    mean_off_s: float = Field(gt=0, description="Mean length of a quiet spell.")
    cv: float = Field(
        default=1.0, gt=0, description="Coefficient of variation of the gaps at a constant rate."
    )

    @model_validator(mode="after")
    def _burst_is_faster(self) -> Bursts:
        if self.burst_rate_per_s <= self.rate_per_s:
            raise ValueError("burst_rate_per_s must be above rate_per_s")
        return self

    @property
    def mean_rate_per_s(self) -> float:
        """Long-run mean rate."""
        on, off = self.mean_on_s, self.mean_off_s
        return (self.burst_rate_per_s * on + self.rate_per_s * off) / (on + off)

    def times_s(self, rng: np.random.Generator, n: int) -> Float64:
        """Return n arrival times, the first at 0.

        A renewal process of rate 1 is stretched by the alternating rate: arrival i happens when the
        integral of the rate reaches the i-th unit arrival.
        """
        states, units = rng.spawn(2)
        wanted = np.cumsum(_unit_gaps(units, n, self.cv))
        on = states.random() < self.mean_on_s / (self.mean_on_s + self.mean_off_s)
        edges_s, integral = [0.0], [0.0]
        while integral[-1] < wanted[-1]:
            length_s = states.exponential(self.mean_on_s if on else self.mean_off_s)
            edges_s.append(edges_s[-1] + length_s)
            integral.append(integral[-1] + length_s * (self.burst_rate_per_s if on else self.rate_per_s))
            on = not on
        times_s = np.interp(wanted, integral, edges_s)
        return times_s - times_s[0]


Arrivals = Annotated[Poisson | Gamma | Steady | Bursts, Field(discriminator="kind")]


def generated_ns(arrivals: Arrivals, seed: int, n: int) -> NDArray[np.int64]:
    """Return n arrival times in ns, int64[n], for a file that has none of its own."""
    times_s = arrivals.times_s(np.random.default_rng(seed), n)
    return np.array([seconds_to_ns(t) for t in times_s.tolist()], dtype=np.int64)


def _unit_gaps(rng: np.random.Generator, n: int, cv: float) -> Float64:
    """Gamma gaps with mean 1."""
    return rng.gamma(1 / cv**2, cv**2, n)


def _from_gaps(gaps_s: Float64) -> Float64:
    return np.cumsum(gaps_s) - gaps_s[0]
