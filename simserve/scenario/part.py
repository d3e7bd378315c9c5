"""What every mapping of a scenario file has in common, and what several of their values are like."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simserve.engines.presets import DEFAULT_ENGINE

Degree = Annotated[int, Field(ge=1, le=4096)]

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
SHORT_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
PERCENTILE = r"^p\d{1,2}(\.\d{1,3})?$"
PATTERNS = {
    NAME: "letters, digits, '_', '.' and '-', beginning with a letter or a digit",
    SHORT_NAME: "up to 64 letters, digits, '_', '.' and '-', beginning with a letter or a digit",
    PERCENTILE: "'p' and a percentage, such as p99 or p99.9",
}
"""What each pattern allows, in the words of messages."""


class Part(BaseModel):
    """A frozen mapping that refuses unknown keys, and words where numbers belong."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# An engine or a router as a scenario names it: a bare name, or a mapping of it and its own settings.
#
# Its settings are kept as given and validated by the component, so that this file does not grow with them.


class EngineSpec(Part):
    """Scheduler semantics, and options that depart from its defaults."""

    preset: str | None = Field(None, description=f"An engine and its version, such as {DEFAULT_ENGINE}.")
    policy: str | None = Field(
        None,
        description="A scheduling policy without an engine version: static, orca, or package.module:Class.",
    )
    block_size: Degree | None = Field(None, description="Tokens per KV block; default: the engine version's.")
    overhead: str | None = Field(
        None,
        description="The engine's own time per step and request: vllm, sglang, trtllm, ideal (none), one of "
        "these with another largest CUDA graph ('vllm, graphs up to 64'), or a file that "
        "`simserve calibrate` wrote; default: the engine's.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the policy, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Accept a bare preset name, and take every key that is not ours as a setting of the policy.

        Beside a preset, which says whose policy it is, `policy` is a setting like others: vLLM's says what
        its option of that name is called here.
        """
        if isinstance(value, str):
            return {"preset": value}
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"found {value!r}, allowed: an engine's name, or a mapping of keys")
        ours = {"preset", "block_size", "overhead"} | (set() if value.get("preset") else {"policy"})
        own = {key: item for key, item in value.items() if key in ours}
        return {**own, "options": {key: item for key, item in value.items() if key not in ours}}

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        own = self.model_dump(exclude={"options"}, exclude_none=True)
        return {**own, **self.options}


class RouterSpec(Part):
    """Which replica gets an arriving request."""

    kind: str = Field("round_robin", description="A router's name, or package.module:Class.")
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the router, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"kind": value}
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"found {value!r}, allowed: a router's name, or a mapping of keys")
        own = {key: item for key, item in value.items() if key == "kind"}
        return {**own, "options": {k: v for k, v in value.items() if k != "kind"}}

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return {"kind": self.kind, **self.options}
