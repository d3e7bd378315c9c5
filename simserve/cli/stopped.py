"""SIGTERM ends a command as Ctrl-C does: what it was writing is cleared away, and one line says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
