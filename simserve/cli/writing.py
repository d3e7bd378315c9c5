"""Commands that write: nothing is overwritten unasked, and SIGTERM clears away what was half written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simserve.errors import UserError

# What a command that writes one file says of a file that is there already.


def refuse_to_overwrite(path: Path | None, force: bool) -> None:
    """Raise `UserError` if `path` (None: nothing is written) exists, unless told to replace it."""
    if path is not None and path.exists() and not force:
        raise UserError(f"{path}: exists already; give another name, or --force to replace it")


class Terminated(KeyboardInterrupt):
    """The process was asked to end (by `kill`, a scheduler, a container being stopped)."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return 128 plus the number of the signal, as shells do."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def words(stop: KeyboardInterrupt) -> str:
    """Return what to say of a stop: its own message, or what happened."""
    return str(stop) or ("terminated" if isinstance(stop, Terminated) else "interrupted")


@contextmanager
def raised() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM comes while the block runs."""

    def stop(*_: Any) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():  # only that one may set a handler
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
