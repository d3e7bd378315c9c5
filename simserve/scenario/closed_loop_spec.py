"""Clients that wait for an answer before they send again: back to back, or users who think in between."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simserve.scenario.part import Part
from simserve.workload.distributions import Distribution

Clients = Annotated[int, Field(ge=1, le=1_000_000)]


class ClosedLoopSpec(Part):
    """Send the next request when one ends, instead of at the recorded time: by concurrency, or by users."""

    concurrency: Clients | None = Field(None, description="Requests in flight at any time.")
    users: Clients | None = Field(
        None, description="Users, each with one request (or session) at a time and a pause before it."
    )
    think_s: Distribution | None = Field(
        None, description="The pause of a user before each request, in seconds."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> ClosedLoopSpec:
        if (self.concurrency is None) == (self.users is None):
            raise ValueError("give exactly one of concurrency and users")
        if (self.users is None) != (self.think_s is None):
            raise ValueError("users and think_s belong together; without a pause use concurrency")
        return self

    @property
    def clients(self) -> int:
        """How many wait at the same time."""
        return self.concurrency or self.users or 0
