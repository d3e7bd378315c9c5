"""Real measurements on this CPU, one thread, few and small; skipped where torch is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None
NEEDS_TORCH = {
    "test_profiler_ops.py", "test_profiler_resume.py", "test_profiler_run.py", "test_profiler_collective.py",
    "test_cpu_engine.py", "test_profiler_timing.py", "test_profiler_gpu_paths.py",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="torch is not installed: pip install -e '.[profile]'")
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in NEEDS_TORCH and not HAS_TORCH:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _one_thread(request: pytest.FixtureRequest) -> None:
    if HAS_TORCH and request.path.name in NEEDS_TORCH:
        import torch

        torch.set_num_threads(1)
