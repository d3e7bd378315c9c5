"""A real browser: Debian's chromium through playwright, with no way to the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_run import write_example

from simserve.report import write_report


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory) -> Path:
    """A run of 20,000 requests with its report."""
    folder = write_example(tmp_path_factory.mktemp("report") / "run")
    write_report(folder)
    return folder


class Opened:
    """A page from file://, what its console said and what it asked the network for."""

    def __init__(self, browser, path: Path, **context) -> None:
        self.context = browser.new_context(offline=True, **context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn], html:not(:has(#figures))", state="attached")


@pytest.fixture
def open_page(browser):
    """Return a function that opens a file, with playwright's context options (viewport, color_scheme ...)."""
    opened: list[Opened] = []

    def open_(path: Path, **context) -> Opened:
        opened.append(Opened(browser, path, **context))
        return opened[-1]

    yield open_
    for one in opened:
        one.context.close()
