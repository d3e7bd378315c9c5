"""The page as a file: its size, its bytes, and runs at the edge of 'no data'."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from example_run import SLO, example_result, first_requests, manifest, write_example

from simserve.core import Result, Status
from simserve.errors import ScenarioError
from simserve.metrics import summarize, write_results
from simserve.report import write_report
from simserve.report.page import plotly_js


def text_of(page: str) -> str:
    """Visible text, tags and scripts removed."""
    page = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def report(folder, result: Result, facts=None, slo=SLO) -> str:
    write_results(folder, result, summarize(result, slo), "name: x\n", facts or {}, slo=slo)
    return text_of(write_report(folder).read_text(encoding="utf-8"))


def test_at_most_0_7_megabytes_with_all_that_draws_it(run_folder):
    size = (run_folder / "report.html").stat().st_size
    assert size < 700_000


def test_plotly_is_there_once_and_nothing_points_to_a_network(run_folder):
    page = (run_folder / "report.html").read_text(encoding="utf-8")
    assert page.count(plotly_js()) == 1
    ours = page.replace(plotly_js(), "")
    assert "http://" not in ours
    assert "https://" not in ours
    assert "src=" not in ours


def test_same_folder_same_bytes(run_folder):
    before = (run_folder / "report.html").read_bytes()
    assert write_report(run_folder).read_bytes() == before
    assert sorted(path.suffix for path in run_folder.iterdir()).count(".partial") == 0


def test_a_bigger_run_does_not_make_a_bigger_page(tmp_path, run_folder):
    small = write_report(write_example(tmp_path / "small", n=2_000)).stat().st_size
    assert (run_folder / "report.html").stat().st_size < 1.02 * small


def test_only_the_folder_is_needed_and_missing_facts_are_no_error(tmp_path):
    text = report(tmp_path / "run", example_result(400), {})
    assert "2 × GPU may not meet the SLO" in text


@pytest.mark.parametrize("n", [0, 1, 2, 30])
def test_few_requests_make_a_page(tmp_path, n):
    result = example_result(400)
    text = report(tmp_path / "run", first_requests(result, n), manifest())
    assert ("Nothing arrived" in text) == (n == 0)
    assert "nan" not in text.lower().replace("finance", "")


def test_nothing_completed_is_said_first(tmp_path):
    result = example_result(50)
    absent = np.full(50, -1)
    refused = dataclasses.replace(
        result,
        status=np.full(50, int(Status.REFUSED)),
        reason=np.zeros(50, np.int64),
        first_scheduled_ns=absent,
        first_token_ns=absent,
        last_token_ns=absent,
        output_tokens=np.zeros(50, np.int64),
        replica=absent,
    )
    text = report(tmp_path / "run", refused, manifest())
    assert "2 × H100 SXM completed none of 50 requests." in text
    assert "50 × prompt + output exceed max_model_len" in text


def test_an_overloaded_run_says_so_first(tmp_path):
    text = report(tmp_path / "run", example_result(4000, rate=40), manifest())
    assert "Overloaded: 2 × H100 SXM serve" in text


def test_without_an_slo_nothing_is_said_about_one(tmp_path):
    text = report(tmp_path / "run", example_result(300), manifest() | {"slo": None}, slo=None)
    assert "SLO attainment:" not in text
    assert "meet the SLO" not in text


def test_manifest_reaches_the_reader(run_folder):
    text = text_of((run_folder / "report.html").read_text(encoding="utf-8"))
    facts = manifest()
    told = [
        facts["command"],
        *facts["assumptions"],
        *facts["trace"]["changes"],
        *facts["trace"]["assumptions"],
    ]
    told += [line["basis"] for line in facts["pools"][0]["ledger"]]
    for line in told:
        assert line in text
    assert "extrapolated 5 %" in text


def test_not_a_result_folder_is_named(tmp_path):
    with pytest.raises(ScenarioError, match="no such result folder"):
        write_report(tmp_path / "nothing")
