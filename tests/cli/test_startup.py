"""What every call pays before it does anything: modules that are slow to import stay out.

Times are for `python -m benchmarks.startup`; here it is the cause that counts.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import tiny

_PROGRAM = """
import sys
from simserve.cli import app
try:
    app({arguments!r})
except SystemExit:
    pass
print("loaded:", *sorted({{name for name in sys.modules}}))
"""
_ONE_REQUEST = tiny("one request", requests=1)


def loaded_by(*arguments: str) -> set[str]:
    """Return the modules that a call of simserve has imported when it ends."""
    program = _PROGRAM.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("loaded:")[2].split())


def test_help_imports_no_library_but_that_of_the_command_line() -> None:
    loaded = loaded_by("--help")
    assert "typer" in loaded
    assert not loaded & {"numpy", "pandas", "pyarrow", "plotly", "simpy", "jinja2", "ruamel", "pydantic"}
    ours = {name for name in loaded if name.startswith("simserve.")}
    assert all(name.startswith(("simserve.cli", "simserve.errors")) for name in ours), ours


@pytest.mark.parametrize("quiet", [True, False])
def test_a_run_imports_nothing_that_is_slow_and_not_needed(tmp_path: Path, quiet: bool) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text(_ONE_REQUEST)
    loaded = loaded_by("run", str(scenario), "--out", str(tmp_path / "out"), *["--quiet"] * quiet)
    assert (tmp_path / "out" / "report.html").is_file()
    assert {"simpy", "numpy"} <= loaded
    comparisons = ("simserve.report.compare.page", "simserve.report.compare.charts")
    slow = {"pandas", "plotly", "scipy", "torch", "matplotlib", "pyarrow.compute", "pyarrow.dataset"}
    assert not loaded & slow
    assert not {name for name in loaded if name in comparisons}
