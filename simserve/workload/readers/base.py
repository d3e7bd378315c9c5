"""The contract of a trace format: recognise a file by its content, and turn it into a `Trace`."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from simserve.core import Trace
from simserve.registry import Registry
from simserve.workload.source import TraceFile


class ReaderOptions(BaseModel):
    """Base of every format's options: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TraceReader(Protocol):
    """One trace format. Stateless: the registry holds the class, each load makes an instance."""

    Options: ClassVar[type[ReaderOptions]]

    def sniff(self, file: TraceFile) -> bool:
        """Return whether `file` is of this format, judged by its first line (or magic bytes) alone."""
        ...

    def read(self, file: TraceFile, options: Any) -> Trace:
        """Return the trace. Raises `TraceError` naming file, line, column and value.

        `options` is an instance of the class's own `Options`. What was assumed, dropped or reordered goes
        into the trace's origin.
        """
        ...


READERS: Registry[type[TraceReader]] = Registry("trace format", "simserve.workload.readers")
