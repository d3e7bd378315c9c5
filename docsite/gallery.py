"""`python -m docsite.gallery [NAME ...]`: simulate the scenarios that ship, for the gallery of the site.

Each becomes build/gallery/<name>/report.html. One that was made by the same scenario and the same source is
kept; one that cannot be made here (a trace to fetch, an extra that is missing) is left out, with its reason.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from simserve.study.journal import code_version

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "build" / "gallery"
REPORT, STAMP, WHY_NOT = "report.html", "made-by", "why-not"
FINE = (0, 3)
"""Exit codes of a command that wrote its page."""


@dataclass(frozen=True)
class Shown:
    """A scenario of the gallery."""

    path: Path

    @property
    def name(self) -> str:
        """Name of its page: `effects-fp8_kv` for scenarios/effects/fp8_kv.yaml."""
        return "-".join(self.path.relative_to(ROOT / "scenarios").with_suffix("").parts)

    @property
    def file(self) -> str:
        """Name that commands take."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def lines(self) -> list[str]:
        """The comment that the file begins with."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        return [line.removeprefix("#").strip() for line in lines[:end]]

    @property
    def question(self) -> str:
        """The first sentence of that comment."""
        return re.split(r"(?<=[.?])\s", " ".join(self.lines))[0]

    @property
    def explanation(self) -> str:
        """What follows, without the lines that say how to run it."""
        text = " ".join(line for line in self.lines if not line.startswith(("Run:", "Guide:", "Try:")))
        return text.removeprefix(self.question).strip()

    @property
    def command(self) -> str:
        """The command that makes its report: run, or the study that the file names first."""
        named = re.search(r"Run: simserve (\w+)", " ".join(self.lines))
        return f"simserve {named[1] if named else 'run'} {self.file}"


def scenarios() -> list[Shown]:
    """Return all that ship, the plain ones first."""
    folder = ROOT / "scenarios"
    return [Shown(path) for path in (*sorted(folder.glob("*.yaml")), *sorted(folder.glob("effects/*.yaml")))]


def stamp(shown: Shown) -> str:
    """Return what a report depends on."""
    return f"{hashlib.sha256(shown.path.read_bytes()).hexdigest()} {code_version()}"


def make(shown: Shown, gallery: Path) -> str:
    """Make a report unless it is there; return what happened, in a word or in the reason for nothing."""
    folder = gallery / shown.name
    made_by = folder.with_suffix(f".{STAMP}")
    if made_by.is_file() and made_by.read_text(encoding="utf-8") == stamp(shown):
        return "kept"
    command = [sys.executable, "-m", *shown.command.split(), "--out", str(folder), "--force", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    why_not = folder.with_suffix(f".{WHY_NOT}")
    why_not.unlink(missing_ok=True)
    if done.returncode in FINE and (folder / REPORT).is_file():
        made_by.write_text(stamp(shown), encoding="utf-8")
        return "made"
    reason = (done.stderr.strip().splitlines() or ["nothing was written"])[0]
    gallery.mkdir(parents=True, exist_ok=True)
    why_not.write_text(reason, encoding="utf-8")
    return reason


def main(names: list[str]) -> None:
    """Make the reports of the named scenarios, or of all."""
    wanted = [shown for shown in scenarios() if not names or shown.name in names]
    for number, shown in enumerate(wanted, 1):
        print(f"[{number}/{len(wanted)}] {shown.name}: {make(shown, GALLERY)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
