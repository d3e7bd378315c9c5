"""Arrivals for files that have none: drawn, or left to clients that wait for their answers."""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from simserve.errors import TraceError
from simserve.workload.arrivals import Arrivals, Poisson, generated_ns
from simserve.workload.readers.base import ReaderOptions
from simserve.workload.select import Int64

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
