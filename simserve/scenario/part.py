"""What every mapping of a scenario file has in common, and numbers that several have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Degree = Annotated[int, Field(ge=1, le=4096)]


class Part(BaseModel):
    """A frozen mapping that refuses unknown keys, and words where numbers belong."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
