"""`simserve gpus`."""

import json

from typer.testing import CliRunner

from simserve.cli.gpus import app

RUN = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})


def test_table_fits_eighty_columns() -> None:
    out = RUN.invoke(app, [])
    assert out.exit_code == 0
    assert max(len(line) for line in out.stdout.splitlines()) <= 80
    assert "h200_sxm" in out.stdout


def test_show_names_a_source_and_a_date() -> None:
    out = RUN.invoke(app, ["show", "h100_sxm"])
    assert "NVIDIA H100 data sheet" in " ".join(out.stdout.split())
    assert "2023-04" in out.stdout


def test_json_is_json() -> None:
    names = {gpu["name"] for gpu in json.loads(RUN.invoke(app, ["--json"]).stdout)}
    assert "b200_sxm" in names
    assert json.loads(RUN.invoke(app, ["show", "h20", "--json"]).stdout)["sm_arch"] == 90
