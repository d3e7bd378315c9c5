"""Hooks of mkdocs: pages that are made of the program, and links that leave the folder of the pages.

Made here: a page for every name of the Python API, the gallery, and copies of pages that lie beside docs. A
link to a file of the repository that the site does not have becomes plain text: the project has no public
address that it could lead to.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import simserve
from docsite.gallery import GALLERY, REPORT, WHY_NOT, Shown, scenarios

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs"
BESIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "traces/README.md": "traces.md",
    "kernels_profile/README.md": "kernels_profile.md",
    "scenarios": "gallery/index.md",
    "scenarios/effects": "gallery/index.md",
}
"""Files beside docs, and the page of the site that has them."""
INSTEAD = BESIDE | {"README.md": "README.md"}
"""Files that are linked to, and where such a link leads: the first page stands for the repository's own."""
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"[a-z]+:|#|//")


def gallery_folder() -> Path:
    """Return where the reports lie; a test sets another folder."""
    return Path(os.environ.get("SIMSERVE_GALLERY", GALLERY))


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    for source, page in BESIDE.items():
        if (ROOT / source).is_file():
            files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/api.md", content=api_page()))
    files.append(File.generated(config, "gallery/index.md", content=gallery_index()))
    for shown in scenarios():
        files.append(File.generated(config, f"gallery/{shown.name}.md", content=gallery_page(shown)))
        report = gallery_folder() / shown.name / REPORT
        if report.is_file():
            path = f"gallery/reports/{shown.name}.html"
            files.append(File.generated(config, path, abs_src_path=str(report)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links that leave the folder of the pages to where the site has their target."""
    source = page.file.src_uri
    original = {made: place for place, made in BESIDE.items()}.get(source, f"{DOCS}/{source}")
    if source.startswith("gallery/") or source == "reference/api.md":
        return markdown

    def turned(match: re.Match[str]) -> str:
        picture, text, link = match.groups()
        target, hash_, anchor = link.partition("#")
        if OUTSIDE.match(link) or picture or not target:
            return match[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(original), target))
        if place.startswith(f"{DOCS}/") and not (ROOT / place).is_dir():
            found = place.removeprefix(f"{DOCS}/")
            text = title(ROOT / place) if text == target else text
        elif place in INSTEAD:
            found = INSTEAD[place]
        elif (ROOT / place).exists():
            return text
        else:
            return match[0]
        relative = posixpath.relpath(found, posixpath.dirname(source) or ".")
        return f"[{text}]({relative}{hash_}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(turned, part) for part in parts)


def title(path: Path) -> str:
    """Return the heading of a page; the name of the file if that has none."""
    heading = (
        re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if path.is_file() else None
    )
    return heading[1] if heading and path.suffix == ".md" else path.name


def api_page() -> str:
    """Return the page of the Python API: every name of `simserve.__all__`, from its docstring."""
    names = [name for name in simserve.__all__ if name != "router"]
    parts = [f"::: simserve.api.{name}" for name in names]
    router = (
        "## router\n\nA decorator, `@simserve.router(name)`: registers a class as the router of that name."
    )
    head = "# Python API\n\nEvery name of `import simserve`; [From Python](../python.md) shows them at work."
    return "\n\n".join([head, *parts, router]) + "\n"


def gallery_index() -> str:
    """Return the list of questions."""
    rows = [f"- [{shown.question}]({shown.name}.md)" for shown in scenarios()]
    own = [row for row, shown in zip(rows, scenarios(), strict=True) if "effects" not in shown.name]
    effects = rows[len(own) :]
    return "\n".join(
        [
            "# Gallery",
            "",
            "Every scenario that ships, with its report. A scenario is a file to copy and change.",
            "",
            *own,
            "",
            "## Published effects",
            "",
            "Each simulates what somebody has measured, and shows the published figures beside ours.",
            "",
            *effects,
            "",
        ]
    )


def gallery_page(shown: Shown) -> str:
    """Return the page of one scenario: question, what it is about, the report, the file."""
    report = gallery_folder() / shown.name / REPORT
    scenario = shown.path.read_text(encoding="utf-8")
    lines = [f"# {shown.question}", "", shown.explanation, "", f"```console\n$ {shown.command}\n```", ""]
    if report.is_file():
        address = f"reports/{shown.name}.html"
        lines += [
            f'<a href="{address}">The report on a page of its own</a>',
            "",
            f'<iframe class="report" src="{address}" title="{shown.question}" loading="lazy"></iframe>',
        ]
    else:
        why_not = (gallery_folder() / shown.name).with_suffix(f".{WHY_NOT}")
        reason = why_not.read_text(encoding="utf-8") if why_not.is_file() else "it was not run for this site"
        lines += [f"No report here: {reason}."]
    return "\n".join([*lines, "", f"## {shown.file}", "", f"```yaml\n{scenario}```", ""])
