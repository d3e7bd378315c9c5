"""When requests (or sessions) arrive: renewal processes, and bursts between quiet spells."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from simserve.errors import TraceError
from simserve.units import seconds_to_ns
from simserve.workload.blocks import Int64
from simserve.workload.formats.base import ReaderOptions
from simserve.workload.synthetic.distributions import Part

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


# Arrivals for files that have none: drawn, or left to clients that wait for their answers.

CHOICES = "rate: 5 (requests per second, Poisson), or workload.closed_loop: {concurrency: 8}"


class ArrivalOptions(ReaderOptions):
    """When requests are sent, where the file does not say."""

    rate: float | None = Field(
        default=None, gt=0, le=1e9, description="Requests (or sessions) per second, as a Poisson process."
    )
    arrivals: Arrivals | None = Field(
        default=None, description="Generated arrivals of any kind, e.g. {kind: gamma, rate_per_s: 2, cv: 3}."
    )
    seed: int = Field(default=0, ge=0, description="Seed of the generated arrivals.")
    closed_loop: bool = Field(
        default=False,
        description="All requests are at hand at time 0 (a scenario with closed_loop sets it).",
    )

    @model_validator(mode="after")
    def _one_way(self) -> ArrivalOptions:
        if (self.rate is not None) + (self.arrivals is not None) > 1:
            raise ValueError("rate and arrivals both say when requests come: leave one of them out")
        return self

    @property
    def given(self) -> bool:
        """Whether anything says when requests are sent."""
        return self.closed_loop or self.rate is not None or self.arrivals is not None

    def made_ns(self, n: int) -> tuple[Int64, str]:
        """Return n arrivals in ns, int64[n], and how they came about; something must be `given`."""
        arrivals = self.arrivals if self.rate is None else Poisson(kind="poisson", rate_per_s=self.rate)
        if arrivals is None:
            return np.zeros(n, dtype=np.int64), "closed loop: clients take the requests in the file's order"
        return generated_ns(arrivals, self.seed, n), f"arrivals generated (seed {self.seed}): {arrivals!r}"

    def check_recorded(self, path: object, column: str) -> None:
        """Raise `TraceError` if arrivals are asked for that would replace those of the file."""
        if self.rate is not None or self.arrivals is not None:
            raise TraceError(
                f"{path}: the file has arrivals ({column}), which rate and arrivals would replace; allowed "
                "is rate_scale in the scenario's workload"
            )
