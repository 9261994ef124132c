"""The files and headings that README and docs name are there."""

import re

import pytest
from pages import PAGES, ROOT, name, without_blocks

OURS = ("bench", "docs", "jobs", "planner", "tests")
# First folders of files that are not ours: other systems', and those of the examples in extending.md.
OF_OTHERS = {"litgpt", "planner_csv_log", "planner_hinge", "planner_translation", "scripts"}
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|md|yaml|json|sh)")


def named(page):
    """Every `folder/file.py` in backquotes, alone or in a command. `NAME` and `<number>` stand for other names."""
    words = [
        word.strip("{}(),:;'\"") for code in re.findall(r"`([^`\n]+)`", without_blocks(page)) for word in code.split()
    ]
    files = {word for word in words if FILE.fullmatch(word) and "NAME" not in word}
    return {file for file in files if file.partition("/")[0] not in OF_OTHERS}


def files_of_ours():
    """From the root, each with a slash before it."""
    return [f"/{file.relative_to(ROOT)}" for folder in OURS for file in (ROOT / folder).rglob("*")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_is_there(page):
    """By its path, or by the end of it: `dispatch/launch.py`, `ray_internal/policy.py`."""
    files = files_of_ours()
    assert [name for name in sorted(named(page)) if not any(file.endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", without_blocks(page))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_headings_lead_to_one(page):
    """By the rule of GitHub's anchors, in the same page and in others."""
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", without_blocks(page))
    leading = [(page.parent / file if file else page, heading) for file, heading in links]
    assert [(file.name, heading) for file, heading in leading if heading not in anchors(file)] == []


def anchors(page) -> set[str]:
    """Of a page's headings."""
    titles = re.findall(r"(?m)^#+ (.*)$", without_blocks(page))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_names_and_links_are_found():
    """Neither test above passes because it looks at nothing."""
    assert "ray_internal/trainer.py" in named(ROOT / "docs" / "architecture.md")
    assert "tests/imports/import_graph.py" in named(ROOT / "docs" / "architecture.md")
    assert sum(len(named(page)) for page in PAGES) > 50
