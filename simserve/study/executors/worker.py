"""What a worker process does: take a scenario, then task after task, until the pipe closes."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection


def main(fileno: int) -> None:
    """Serve the pipe with this number. Ctrl-C is the business of the process at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(fileno)
    try:
        _serve(pipe)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _serve(pipe: Connection) -> None:
    from simserve.study.bench import Bench, unpacked

    bench = Bench(unpacked(*pipe.recv()))
    while True:
        task = pipe.recv()
        try:
            answer = bench.run(task)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pipe.send(answer)
