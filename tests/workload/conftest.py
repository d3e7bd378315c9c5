"""Where the public traces lie, and small files to write."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload import load_trace
from tests.places import SHARED

PUBLIC = SHARED / "traces"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "public" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.reference("traces"))


@pytest.fixture
def public() -> Callable[..., Trace]:
    """Load a public trace by file name."""

    def load(name: str, **options: Any) -> Trace:
        return load_trace(PUBLIC / name, **options)

    return load


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write a file (gzip if the name says so) and return its path."""

    def write(name: str, content: str | bytes) -> Path:
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.fixture
def refused() -> Callable[..., str]:
    """Load a file that must be refused, and return the one line of the error."""

    def load(path: Path, **options: Any) -> str:
        with pytest.raises(TraceError) as caught:
            load_trace(path, **options)
        message = str(caught.value)
        assert "\n" not in message
        assert path.name in message
        return message

    return load


@pytest.fixture
def assert_same() -> Callable[[Trace, Trace], None]:
    """Compare everything of two traces but the origin."""
    return _assert_same


def _assert_same(a: Trace, b: Trace) -> None:
    for field in fields(a):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name == "labels":
            assert left.keys() == right.keys()
            assert all((left[name] == right[name]).all() for name in left)
        elif field.name != "origin":
            assert (left is None) == (right is None), field.name
            assert left is None or np.array_equal(left, right), field.name
