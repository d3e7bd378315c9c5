"""What a scenario says of its workload: a trace or a generated one, what is kept of it, and its clients."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.scenario.part import Part
from simserve.workload.synthetic.distributions import Distribution
from simserve.workload.synthetic.spec import SyntheticSpec

# Clients that wait for an answer before they send again: back to back, or users who think in between.

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


class WorkloadSpec(Part):
    """What arrives, and when."""

    trace: str | None = Field(
        None, min_length=1, description="A trace file: relative to this file, or one that ships."
    )
    format: str | None = Field(None, description="Format of the trace; default: recognised from its content.")
    trace_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Options of the trace's format, such as its time unit or block size.",
    )
    columns: dict[str, str] | None = Field(
        None,
        description="Which column is which: {arrival: ts, prompt_tokens: in, output_tokens: out}; "
        "default: by their names.",
    )
    tokenizer: str | None = Field(
        None,
        min_length=1,
        description="Tokenizer that counts a trace of texts (ShareGPT, OpenAI messages): a tokenizer.json, a "
        "folder with one, or a model's name on Hugging Face.",
    )
    tokens_per_word: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="Tokens a word for a trace of texts, instead of a tokenizer: an assumption."
    )
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="Requests per second, as a Poisson process, for a trace without arrivals."
    )
    synthetic: SyntheticSpec | None = Field(None, description="A generated workload instead of a trace.")
    window_s: tuple[float, float] | None = Field(
        None, strict=False, description="Keep only arrivals in [start, end) seconds of the trace's own time."
    )
    quantised: Literal["literal", "spread"] = Field(
        "literal",
        description="Arrivals that share a coarse time stamp: take as given, or spread in the quantum.",
    )
    rate_scale: Annotated[float, Field(ge=1e-4, le=1e6)] = Field(
        1.0, description="Multiply the request rate by this factor."
    )
    scale_by: Literal["compress", "thin"] = Field(
        "compress",
        description="Scale the rate by compressing time, or (factors below 1) by dropping requests.",
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(None, description="Simulate only the first N requests.")
    max_tokens: Annotated[int, Field(ge=1, le=100_000_000)] | Literal["exact"] | None = Field(
        None,
        description="Output limit that clients declare: a number, or 'exact' (the recorded length); default: "
        "the trace's own column, else none (what the model's maximum leaves).",
    )
    closed_loop: ClosedLoopSpec | None = None
    give_up_s: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None,
        description="Seconds after which a client that has not got the whole answer gives up; the engine "
        "then drops the request, as it does when a connection closes. Default: never.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadSpec:
        if (self.trace is None) == (self.synthetic is None):
            found = "none" if self.trace is None else "both"
            raise ValueError(f"give exactly one of trace and synthetic, found {found}")
        if self.format is not None and self.trace is None:
            raise ValueError("format belongs to a trace, not to a synthetic workload")
        if self.columns is not None and self.trace is None:
            raise ValueError("columns belong to a trace, not to a synthetic workload")
        for key in ("tokenizer", "tokens_per_word"):
            if getattr(self, key) is not None and self.trace is None:
                raise ValueError(f"{key} belongs to a trace of texts, not to a synthetic workload")
        if self.tokenizer is not None and self.tokens_per_word is not None:
            raise ValueError("tokenizer and tokens_per_word both say how to count: leave one of them out")
        if self.rate is not None and self.trace is None:
            raise ValueError("rate is for a trace without arrivals; here it is synthetic.arrivals.rate_per_s")
        if self.rate is not None and self.closed_loop is not None:
            raise ValueError("rate and closed_loop both say when requests come: leave one of them out")
        if self.columns is not None and self.format not in (None, "columns"):
            raise ValueError(f"columns say what format {self.format!r} knows already: leave one of them out")
        if self.window_s is not None and not 0 <= self.window_s[0] < self.window_s[1]:
            raise ValueError(
                f"window_s must be [start, end] with 0 <= start < end, found {list(self.window_s)}"
            )
        if self.scale_by == "thin" and self.rate_scale > 1:
            raise ValueError(
                f"scale_by: thin can only lower the rate (rate_scale <= 1, found {self.rate_scale})"
            )
        return self
