"""`python -m simserve`: the same as the `simserve` command."""

from simserve.cli import app

app(prog_name="simserve")
