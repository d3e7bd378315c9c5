"""Public traces that can be fetched from their homes, pinned to a commit and checked against a hash.

None of them ships with simserve: each keeps its own licence, and its authors want to be cited.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simserve.errors import TraceError, nearest

HOME_VARIABLE = "SIMSERVE_TRACE_HOME"
"""Environment variable that replaces https://raw.githubusercontent.com, e.g. by a mirror."""
_HOME = "https://raw.githubusercontent.com"
_TIMEOUT_S = 30


@dataclass(frozen=True)
class PublicTrace:
    """A file in a public repository."""

    repository: str
    commit: str
    path: str
    sha256: str
    licence: str
    about: str

    @property
    def url(self) -> str:
        """Where the file lies."""
        home = os.environ.get(HOME_VARIABLE, _HOME).rstrip("/")
        return f"{home}/{self.repository}/{self.commit}/{self.path}"

    @property
    def file_name(self) -> str:
        """Name of the file at its home."""
        return self.path.rpartition("/")[2]


_AZURE = ("Azure/AzurePublicDataset", "790921015d50dd6aae7f7e47f39ba0e235ad6b08")
_CITE_AZURE = "CC-BY 4.0 (cite Splitwise, ISCA 2024)"

CATALOGUE = {
    "azure-2023-conv": PublicTrace(
        *_AZURE,
        "data/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        _CITE_AZURE,
        "one hour of a conversation service, 19,366 requests",
    ),
    "azure-2023-code": PublicTrace(
        *_AZURE,
        "data/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        _CITE_AZURE,
        "one hour of a coding service, 8,819 requests in bursts",
    ),
    "mooncake-conversation": PublicTrace(
        "kvcache-ai/Mooncake",
        "a2a4b18ac537fd798d50e6e9f57031ce86419a37",
        "FAST25-release/traces/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        "Apache-2.0",
        "one hour, sampled, 12,031 requests with block ids; stamps in ticks of 3 s",
    ),
    "mooncake-synthetic": PublicTrace(
        "kvcache-ai/Mooncake",
        "3cca71daccf2a7afb8fe3f0295358f70e3a69fdb",
        "FAST25-release/traces/synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        "Apache-2.0",
        "built by its authors from public data sets, 3,993 requests with block ids",
    ),
}


def fetch(name: str, folder: str | Path, force: bool = False) -> Path:
    """Download a public trace into `folder`, check its hash, and return its path.

    A file that is there already is kept if its hash is right. Raises `TraceError` for an unknown name,
    another file in the way (unless `force`), no network, or content that is not what it was.
    """
    if name not in CATALOGUE:
        known = ", ".join(CATALOGUE)
        raise TraceError(f"unknown public trace {name!r}{nearest(name, CATALOGUE)}; known: {known}")
    trace = CATALOGUE[name]
    folder = Path(folder)
    target = folder / trace.file_name
    if target.exists():
        if _hash(target) == trace.sha256:
            return target
        if not force:
            raise TraceError(f"{target}: exists already and is not {name}: remove it, or force overwriting")
        target.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    return _download(name, trace, folder)


def _download(name: str, trace: PublicTrace, folder: Path) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.ERROR)

    def download(url: str, output_file: Any, downloader: Any) -> None:
        pooch.HTTPDownloader(timeout=_TIMEOUT_S)(url, output_file, downloader)

    try:
        got = pooch.retrieve(
            trace.url,
            known_hash=trace.sha256,
            fname=trace.file_name,
            path=folder,
            downloader=download,  # pyright: ignore[reportArgumentType] - pooch annotates None
        )
    except requests.HTTPError as error:
        raise TraceError(f"cannot fetch {name}: {error}") from error
    except requests.RequestException as error:
        raise TraceError(
            f"cannot fetch {name}: {trace.url} cannot be reached ({type(error).__name__}); without a "
            "network, bring the file by other means and give its path"
        ) from error
    except ValueError as error:
        raise TraceError(
            f"cannot fetch {name}: {trace.url} is not the pinned file (sha256 {trace.sha256[:12]}...)"
        ) from error
    except OSError as error:
        raise TraceError(f"cannot fetch {name}: {error}") from error
    return Path(got)


def _hash(path: Path) -> str:
    import pooch

    return pooch.file_hash(str(path))
