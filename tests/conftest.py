"""What all tests share: the same examples everywhere, no clock that decides, marks, commands, one browser.

Marks: `reference("folder")` is on tests that read ../shared/folder; they are skipped where it is not. Tests
that use the browser are marked `browser`; tests that took over a second when durations.json was recorded
(`make durations`) are marked `slow`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from typer.testing import CliRunner

from tests.places import REPOSITORY, SHARED

settings.register_profile("simserve", deadline=None, derandomize=True)
settings.load_profile("simserve")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""As the Makefile looks for them."""
DURATIONS = Path(__file__).parent / "durations.json"
SLOW_S = 1.0
"""Functions (over all parameters) that take longer are recorded, and files with a fixture that does."""
_taken: dict[str, float] = {}


def _function(nodeid: str) -> str:
    """Return a test's name without its parameters and its group of workers."""
    return nodeid.partition("[")[0].partition("@")[0]


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="Write tests/durations.json anew.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.is_file() else {}
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if _function(item.nodeid) in slow or _file(item.nodeid) in slow:
            item.add_marker("slow")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("reference"):
        for path in mark.args:
            if not (SHARED / path).exists():
                pytest.skip(f"../shared/{path} is not beside the repository")


def _cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended: the same on a busy machine."""
    return sum(os.times()[:4])


def pytest_runtest_logstart() -> None:
    _taken[""] = _cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report = yield
    report.cpu_s, _taken[""] = _cpu_s() - _taken[""], _cpu_s()
    return report


def pytest_runtest_logreport(report: Any) -> None:
    is_fixture = report.when == "setup" and report.cpu_s >= SLOW_S
    name = _file(report.nodeid) if is_fixture else _function(report.nodeid)
    _taken[name] = _taken.get(name, 0.0) + report.cpu_s


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Record which tests are slow, in the files that have run."""
    if not session.config.getoption("--record-durations") or hasattr(session.config, "workerinput"):
        return
    known = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.is_file() else {}
    _taken.pop("", None)
    files = set(map(_file, _taken))
    kept = {name: s for name, s in known.items() if _file(name) not in files}
    slow = {name: round(s, 1) for name, s in _taken.items() if s >= SLOW_S}
    DURATIONS.write_text(json.dumps(kept | slow, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@pytest.fixture
def simserve() -> Callable[..., Any]:
    """Call `simserve` in this process; the result has exit_code, stdout and stderr."""
    from simserve.cli import app

    def call(*args: str | Path | int) -> Any:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return call


@pytest.fixture
def process() -> Callable[..., subprocess.Popen[str]]:
    """Start `python -m simserve` in a process of its own, in the current folder."""

    def start(*args: str | Path | int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "simserve", *map(str, args)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(REPOSITORY)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, or a failure that says what to install; `SIMSERVE_NO_BROWSER=1` skips."""
    if os.environ.get("SIMSERVE_NO_BROWSER") == "1":
        pytest.skip("SIMSERVE_NO_BROWSER=1: no browser here")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is missing: pip install -e '.[dev]' (or set SIMSERVE_NO_BROWSER=1)")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.fail("no Chromium: apt-get install chromium (or set SIMSERVE_NO_BROWSER=1)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
