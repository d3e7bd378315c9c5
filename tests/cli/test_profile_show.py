"""`simserve profile show`: the table, and the page that is not overwritten by accident."""

from __future__ import annotations

from typer.testing import CliRunner

from simserve.cli import app

RUN = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_page_is_written_and_not_overwritten_by_accident(tmp_path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    refused = RUN.invoke(app, ["profile", "show", "a100_sxm", "--html", str(page)])
    assert refused.exit_code == 2
    assert "page.html: exists already; give another name, or --force to replace it" in refused.stderr
    assert page.read_text() == "mine"
    done = RUN.invoke(app, ["profile", "show", "a100_sxm", "--html", str(page), "--force"])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.strip() == str(page)
    assert "attention, decode, bf16 KV" in page.read_text()


def test_an_unknown_gpu_is_named() -> None:
    out = RUN.invoke(app, ["profile", "show", "h100_sx"])
    assert out.exit_code == 2
    assert "did you mean 'h100_sxm'" in out.stderr
