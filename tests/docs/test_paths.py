"""The files that README and docs name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("bench", "docs", "jobs", "planner", "tests")
# First folders of files that are not ours: other systems', and those of the examples in extending.md.
OF_OTHERS = {"litgpt", "planner_hinge", "scripts"}
FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+\.(?:py|md|yaml|json|sh)")


def without_blocks(guide):
    return re.sub(r"(?ms)^```.*?^```$", "", guide.read_text())


def named(guide):
    """Every `folder/file.py` in backquotes, alone or in a command. `NAME` and `<number>` stand for other names."""
    words = [
        word.strip("{}(),:;'\"") for code in re.findall(r"`([^`\n]+)`", without_blocks(guide)) for word in code.split()
    ]
    files = {word for word in words if FILE.fullmatch(word) and "NAME" not in word}
    return {file for file in files if file.partition("/")[0] not in OF_OTHERS}


def files_of_ours():
    """From the root, each with a slash before it."""
    return [f"/{file.relative_to(ROOT)}" for folder in OURS for file in (ROOT / folder).rglob("*")]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_file_that_a_guide_names_is_there(guide):
    """By its path, or by the end of it: `dispatch/launch.py`, `ray_internal/policy.py`."""
    files = files_of_ours()
    assert [name for name in sorted(named(guide)) if not any(file.endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_every_link_of_a_guide_leads_to_a_file(guide):
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", without_blocks(guide))
    assert [link for link in links if not (guide.parent / link).exists()] == []


def test_names_and_links_are_found():
    """Neither test above passes because it looks at nothing."""
    assert "ray_internal/trainer.py" in named(ROOT / "docs" / "architecture.md")
    assert "tests/import_graph.py" in named(ROOT / "docs" / "architecture.md")
    assert sum(len(named(guide)) for guide in GUIDES) > 50
