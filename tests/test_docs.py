"""What the documents name exists: files, links, and methods of classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT, ROOT / "src" / "ridgeline")  # what a path may be relative to, besides its own document's directory
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PATH = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|cpp|h|md|svg|toml|html)|(?:src|tests|native|docs|benchmarks)/[\w./-]+")
METHOD = re.compile(r"([A-Z][a-z]\w+)\.([a-z_]\w+)(?:\(\))?")


def _exists(name: str, document: Path) -> bool:
    return any((base / name).exists() for base in (*SOURCES, document.parent))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    named = [code.split("::")[0] for code in CODE.findall(text)]
    missing = [name for name in named if PATH.fullmatch(name) and not _exists(name, document)]
    missing += [link for link in LINK.findall(text) if not (document.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_a_document_names_exist(document: Path) -> None:
    """`path::name`, or `::name` of the path before."""
    path, missing = "", []
    for code in CODE.findall(document.read_text(encoding="utf-8")):
        if "::" not in code:
            continue
        path, name = code.split("::")[0] or path, code.split("::")[1]
        if not re.search(rf"^(?:(?:async )?def |class )?{name}\b", (ROOT / path).read_text(encoding="utf-8"), re.M):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_methods_that_the_tour_names_exist() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "ridgeline").rglob("*.py"))
    named = [match for code in CODE.findall(_tour()) if (match := METHOD.fullmatch(code))]
    assert named
    missing = [
        match[0]
        for match in named
        if f"\nclass {match[1]}" not in code or not re.search(rf"\n    def {match[2]}\(|\n    {match[2]}:", code)
    ]
    assert missing == []


def test_the_tour_names_files_of_every_part() -> None:
    """So that the test above cannot pass for want of names."""
    parts = {name.split("/")[0] for name in CODE.findall(_tour()) if PATH.fullmatch(name)}
    assert parts >= {"cli", "server", "engine", "model", "executors", "native"}


def _tour() -> str:
    return (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
