"""What all tests share: the same examples everywhere, no clock that decides, one real browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("simserve", deadline=None, derandomize=True)
settings.load_profile("simserve")

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="session")
def browser():
    """Chromium, or a failure that says what to install; `SIMSERVE_NO_BROWSER=1` skips."""
    if os.environ.get("SIMSERVE_NO_BROWSER") == "1":
        pytest.skip("SIMSERVE_NO_BROWSER=1: no browser here")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("playwright is missing: pip install -e '.[dev]' (or set SIMSERVE_NO_BROWSER=1)")
    if not CHROMIUM.exists():
        pytest.fail(f"{CHROMIUM} is missing: apt-get install chromium (or set SIMSERVE_NO_BROWSER=1)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()
