"""`simserve trace`: what it prints, writes and refuses."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import Result

from simserve.paths import data_dir
from simserve.workload import load_trace
from simserve.workload.catalogue import CATALOGUE, HOME_VARIABLE
from tests.places import SHARED

Call = Callable[..., Result]
CHAT = str(data_dir("traces") / "chat.csv.gz")
LONG = str(data_dir("traces") / "long_context.jsonl.gz")


def one_line(done: Result) -> str:
    """The one line of an error about the user's input."""
    assert done.exit_code == 2, done.output
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("command", [(), ("show",), ("convert",), ("synth",), ("fetch",)])
def test_help_has_examples(simserve: Call, command: tuple[str, ...]) -> None:
    done = simserve("trace", *command, "--help")
    assert done.exit_code == 0
    assert "Example" in done.stdout
    assert "simserve trace" in done.stdout


def test_show_fits_a_terminal(simserve: Call) -> None:
    done = simserve("trace", "show", LONG)
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("4,000 requests", "12,075", "p99", "37.31% of prompt tokens", "assumed: timestamps in ms"):
        assert word in done.stdout


def test_show_json_is_json(simserve: Call) -> None:
    found = json.loads(simserve("trace", "show", CHAT, "--json").stdout)
    assert found["requests"] == 5000
    assert found["format"] == "azure"
    assert found["sha256"] == hashlib.sha256(Path(CHAT).read_bytes()).hexdigest()
    assert found["arrivals"]["windows"][2]["window_s"] == 60
    assert found["prefix"] is None


def test_show_options_reach_the_reader(simserve: Call, tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n5,6\n7,8\n9,1\n")
    assert "lengths only" in one_line(simserve("trace", "show", str(path)))
    done = simserve(
        "trace", "show", str(path), "--json", "-o", "arrivals={kind: constant, rate_per_s: 4}", "-o", "seed=3"
    )
    assert json.loads(done.stdout)["arrivals"]["rate_per_s"] == 4
    assert "KEY=VALUE" in one_line(simserve("trace", "show", str(path), "-o", "seed"))
    assert "did you mean 'arrivals'" in one_line(simserve("trace", "show", str(path), "-o", "arrival=1"))


def test_convert_round_trip_and_force(simserve: Call, tmp_path: Path) -> None:
    target = str(tmp_path / "long.parquet")
    assert simserve("trace", "convert", LONG, target).exit_code == 0
    back = str(tmp_path / "back.jsonl.gz")
    assert f"wrote {back}: 4,000 requests" in simserve("trace", "convert", target, back).stdout
    assert (load_trace(back).block_ids == load_trace(LONG).block_ids).all()
    assert "--force" in one_line(simserve("trace", "convert", LONG, target))
    assert simserve("trace", "convert", LONG, target, "--force").exit_code == 0


def test_convert_names_what_is_lost(simserve: Call, tmp_path: Path) -> None:
    target = str(tmp_path / "long.csv")
    assert "cannot hold block ids" in one_line(simserve("trace", "convert", LONG, target, "--to", "azure"))
    assert not Path(target).exists()
    done = simserve("trace", "convert", LONG, target, "--to", "azure", "--lossy")
    assert "left out: block ids" in done.stderr
    assert "did you mean 'mooncake'" in one_line(
        simserve("trace", "convert", LONG, target + "2", "--to", "moncake")
    )


def test_synth_presets(simserve: Call, tmp_path: Path) -> None:
    first, second, third = (str(tmp_path / f"{name}.csv.gz") for name in "abc")
    for path, seed in ((first, "7"), (second, "7"), (third, "8")):
        assert simserve("trace", "synth", "chat", path, "--requests", "200", "--seed", seed).exit_code == 0
    assert Path(first).read_bytes() == Path(second).read_bytes() != Path(third).read_bytes()
    assert len(load_trace(first)) == 200
    assert "did you mean 'chat'" in one_line(simserve("trace", "synth", "chatt", str(tmp_path / "x.csv")))
    assert "are needed" in one_line(simserve("trace", "synth", "chat"))
    assert "exists already" in one_line(simserve("trace", "synth", "chat", first))


def test_synth_from_a_file(simserve: Call, tmp_path: Path) -> None:
    spec, out = tmp_path / "spec.yaml", tmp_path / "out.csv"
    spec.write_text(
        "requests: 50\narrivals: {kind: poisson, rate_per_s: 2}\n"
        "prompt_tokens: {kind: constant, value: 70}\noutput_tokens: {kind: uniform, min: 1, max: 9}\n"
    )
    done = simserve("trace", "synth", "--spec", str(spec), str(out))
    assert done.exit_code == 0, done.output
    assert set(load_trace(out).prompt_tokens.tolist()) == {70}
    spec.write_text(spec.read_text().replace("poisson", "poison"))
    message = one_line(simserve("trace", "synth", "--spec", str(spec), str(out), "--force"))
    assert "spec.yaml: arrivals" in message
    assert "'poisson'" in message
    spec.write_text("requests: [\n")
    assert "not YAML" in one_line(simserve("trace", "synth", "--spec", str(spec), str(out), "--force"))


def test_page_is_one_offline_file(simserve: Call, tmp_path: Path) -> None:
    page = tmp_path / "chat.html"
    done = simserve("trace", "show", CHAT, "--html", str(page))
    assert f"wrote {page}" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert 'src="http' not in text
    assert "5,000 requests" in text
    assert "--force" in one_line(simserve("trace", "show", CHAT, "--html", str(page)))
    again = tmp_path / "again.html"
    simserve("trace", "show", CHAT, "--html", str(again))
    assert page.read_bytes() == again.read_bytes()


def test_page_draws_in_a_browser(simserve: Call, tmp_path: Path, browser) -> None:
    page_path = tmp_path / "long.html"
    simserve("trace", "show", LONG, "--html", str(page_path))
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(page_path.as_uri())
    page.wait_for_selector("#tokens .plot-container")
    drawn = page.locator(".chart .plot-container").count()
    page.close()
    assert errors == []
    assert drawn == 5


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of the public traces on this machine: what lies in the folder is served over HTTP."""
    root = tmp_path / "mirror"
    root.mkdir()
    handler = functools.partial(_Quiet, directory=str(root))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(HOME_VARIABLE, f"http://127.0.0.1:{server.server_port}")
    yield root
    server.shutdown()
    server.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def _put(root: Path, name: str, content: bytes) -> None:
    trace = CATALOGUE[name]
    path = root / trace.repository / trace.commit / trace.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def test_fetch_lists_names_with_licences(simserve: Call) -> None:
    done = simserve("trace", "fetch")
    for name in CATALOGUE:
        assert name in done.stdout
    assert "CC-BY 4.0" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.reference("traces")
def test_fetch_brings_the_pinned_file(simserve: Call, mirror: Path, tmp_path: Path) -> None:
    _put(mirror, "mooncake-synthetic", original("mooncake_fast25_synthetic.jsonl.gz"))
    done = simserve("trace", "fetch", "mooncake-synthetic", "--to", str(tmp_path / "got"))
    assert done.exit_code == 0, done.output
    assert "Apache-2.0" in done.stdout
    path = tmp_path / "got" / "synthetic_trace.jsonl"
    assert len(load_trace(path)) == 3993
    assert simserve("trace", "fetch", "mooncake-synthetic", "--to", str(tmp_path / "got")).exit_code == 0
    path.write_text("mine")
    assert "exists already" in one_line(
        simserve("trace", "fetch", "mooncake-synthetic", "--to", str(path.parent))
    )
    assert path.read_text() == "mine"
    assert (
        simserve("trace", "fetch", "mooncake-synthetic", "--to", str(path.parent), "--force").exit_code == 0
    )
    assert len(load_trace(path)) == 3993


def test_fetch_refuses_another_content(simserve: Call, mirror: Path, tmp_path: Path) -> None:
    _put(mirror, "azure-2023-code", b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
    done = simserve("trace", "fetch", "azure-2023-code", "--to", str(tmp_path / "got"))
    assert "is not the pinned file" in one_line(done)
    assert not list((tmp_path / "got").iterdir())


def test_fetch_without_the_file_or_the_network(
    simserve: Call, mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "404" in one_line(simserve("trace", "fetch", "azure-2023-conv", "--to", str(tmp_path)))
    monkeypatch.setenv(HOME_VARIABLE, "http://127.0.0.1:1")
    message = one_line(simserve("trace", "fetch", "azure-2023-conv", "--to", str(tmp_path)))
    assert "cannot be reached" in message
    assert "did you mean 'azure-2023-conv'" in one_line(simserve("trace", "fetch", "azure-2023-cnv"))


def original(name: str) -> bytes:
    return gzip.decompress((SHARED / "traces" / name).read_bytes())


@pytest.mark.reference("traces")
def test_catalogue_hashes_are_those_of_the_originals() -> None:
    files = {
        "azure-2023-conv": "azure_llm_2023_conv.csv.gz",
        "azure-2023-code": "azure_llm_2023_code.csv.gz",
        "mooncake-conversation": "mooncake_fast25_conversation.jsonl.gz",
        "mooncake-synthetic": "mooncake_fast25_synthetic.jsonl.gz",
    }
    assert files.keys() == CATALOGUE.keys()
    for name, file in files.items():
        assert hashlib.sha256(original(file)).hexdigest() == CATALOGUE[name].sha256


def test_own_columns_are_named_and_told(simserve: Call, tmp_path: Path) -> None:
    path, target = tmp_path / "own.csv", tmp_path / "plain.csv"
    path.write_text("a,prompt_tokens,completion_tokens\n0,3,5\n250,4,6\n")
    done = simserve("trace", "convert", str(path), str(target), "--columns", "arrival=a", "-o", "unit=ms")
    assert done.exit_code == 0, done.output
    assert "columns recognised: arrival = a (ms), prompt_tokens = prompt_tokens" in done.stderr
    assert load_trace(target).arrival_ns.tolist() == [0, 250_000_000]
    assert "ROLE=COLUMN" in one_line(simserve("trace", "show", str(path), "--columns", "a"))
