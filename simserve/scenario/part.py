"""What every mapping of a scenario file has in common, and what several of their values are like."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

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
