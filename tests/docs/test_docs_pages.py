"""The generated pages are up to date; links lead somewhere."""

from __future__ import annotations

import dataclasses
import pkgutil
import re
import runpy
import sys
from pathlib import Path

import yaml

from pipeline.config.run import REPOSITORY as ROOT

sys.path.insert(0, str(ROOT / "docs" / "generate"))
import drawings
import reference

DOCS = ROOT / "docs"
WRITER = runpy.run_path(str(DOCS / "generate" / "__main__.py"))


def test_generated_pages_and_pictures_are_up_to_date():
    written = WRITER["pages"]()
    if sys.version_info[:2] != (3, 11):  # argparse writes its help otherwise there
        del written["reference/commands.md"]
    for name, text in written.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, f"{name}: run make docs"
    assert {path.name for path in (DOCS / "reference").iterdir()} <= {
        Path(name).name for name in [*written, "commands.md", "functions.md"]
    }


def test_the_chart_of_the_drawing_is_the_worked_example():
    plan = drawings.example_plan("score")
    cells = {tuple(span) for span in plan.spans.tolist() if span[0] != span[1]}
    expected = {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 2), (3, 5), (2, 5), (0, 5)}
    assert cells == expected
    assert "splits [1, 2]" in (DOCS / "pictures" / "chart_score.svg").read_text()


def test_every_field_of_every_section_has_a_row():
    text = (DOCS / "reference" / "configuration.md").read_text()
    for title, cls in reference.SECTIONS.items():
        section = text.split(f"## {title}\n")[1].split("\n## ")[0]
        for field in dataclasses.fields(cls):
            assert f"| `{field.name}` |" in section, f"{title}.{field.name}"


def test_links_to_functions_resolve():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    linked = set(re.findall(r"functions\.md#([\w.]+)\)", pages))
    page = (DOCS / "reference" / "functions.md").read_text(encoding="utf-8")
    assert re.findall(r"^::: (.+)$", page, re.MULTILINE) == sorted(linked)
    for name in linked:
        assert pkgutil.resolve_name(name).__doc__, name


def test_relative_links_and_pictures_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    for page in pages:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not link.startswith(("http://", "https://")):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_is_in_the_navigation():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    text = yaml.safe_dump(settings["nav"])
    for page in DOCS.rglob("*.md"):
        assert page.relative_to(DOCS).as_posix() in text, page.name
    assert settings["strict"] is True
