"""The site of the documentation: no link is dead, and the gallery shows reports under their questions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import simserve
from docsite.gallery import make, scenarios
from tests.places import REPOSITORY

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")
RUN = ("demo", "effects-mla_bytes")


def built(folder: Path, gallery: Path, root: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "SIMSERVE_GALLERY": str(gallery)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with two reports in its gallery."""
    folder = tmp_path_factory.mktemp("site")
    for shown in scenarios():
        if shown.name in RUN:
            assert make(shown, folder / "gallery") == "made"
            assert make(shown, folder / "gallery") == "kept"
    done = built(folder / "site", folder / "gallery")
    assert done.returncode == 0, done.stderr
    return folder / "site"


def test_every_scenario_asks_a_question_and_has_its_page(site: Path) -> None:
    index = (site / "gallery" / "index.html").read_text(encoding="utf-8")
    for shown in scenarios():
        assert shown.question.endswith("?"), shown.file
        assert f'href="{shown.name}.html"' in index
        page = (site / "gallery" / f"{shown.name}.html").read_text(encoding="utf-8")
        assert ("<iframe" in page) == (shown.name in RUN)
        assert "No report here: " in page or shown.name in RUN


def test_reports_are_embedded(site: Path, browser) -> None:
    page = browser.new_page()
    page.goto((site / "gallery" / "demo.html").as_uri())
    assert page.locator("h1").first.inner_text().startswith("A chat service on one H100")
    inside = page.frame_locator("iframe.report")
    inside.locator("h1").first.wait_for()
    assert "1 × H100 SXM" in inside.locator("h1").first.inner_text()
    page.close()


def test_search_finds_and_asks_nobody_else(site: Path, browser) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}"
        page, asked = browser.new_page(), []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{here}/index.html")
        page.get_by_role("textbox", name="Search").fill("goodput")
        page.locator(".md-search-result__link").first.wait_for()
        assert [url for url in asked if not url.startswith((here, "blob:", "data:"))] == []
        page.close()
        server.shutdown()


def test_every_name_and_every_command_has_its_entry(site: Path) -> None:
    api = (site / "reference" / "api.html").read_text(encoding="utf-8")
    assert all(re.search(rf'id="(simserve\.api\.)?{name}"', api) for name in simserve.__all__)
    cli = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    plain = re.sub("</?code>", "", cli)
    assert all(f">simserve {name}<" in plain for name in ("run", "size", "trace show"))


def test_the_first_page_names_pages_by_their_titles(site: Path) -> None:
    first = (site / "index.html").read_text(encoding="utf-8")
    assert ">Step latency</a></td>" in first
    assert ".md</a>" not in first


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Scripts, styles, fonts and pictures; the site is read where there is no network."""
    for path in (site / "index.html", site / "gallery" / "demo.html"):
        found = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', path.read_text())
        assert found == []


@pytest.mark.parametrize("link", ["nowhere.md", "latency.md#no-such-heading", "../simserve/nowhere.py"])
def test_a_planted_dead_link_is_an_error(link: str, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    for path in REPOSITORY.iterdir():
        if path.name != "docs" and not path.name.startswith("."):
            (root / path.name).symlink_to(path)
    shutil.copytree(REPOSITORY / "docs", root / "docs")
    page = root / "docs" / "how-it-works.md"
    page.write_text(page.read_text(encoding="utf-8") + f"\n[dead]({link})\n", encoding="utf-8")
    done = built(tmp_path / "site", tmp_path / "none", root)
    assert done.returncode != 0
    assert link.rpartition("/")[2] in done.stderr
