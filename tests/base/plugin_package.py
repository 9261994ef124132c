"""Packages that add something to planner by an entry point: made in a folder, which then stands on `sys.path`."""

import re
import tomllib
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "extending.md"


def install(folder, group, entries, modules, name="planner-extra"):
    """Lay down a distribution: `entries` are {"NAME": "MODULE:OBJECT"}, `modules` are {"MODULE": its text}."""
    for module, text in modules.items():
        (folder / f"{module}.py").parent.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    information = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def example(section):
    """The files of a section's example in docs/extending.md: each block stands behind a line that names its file."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"`([\w/]+\.\w+)`[^`]*:\n\n```\w+\n(.*?)```", found[1], re.DOTALL)
    return dict(blocks)


def install_example(folder, section):
    """Lay down the package of a section's example; returns its files."""
    files = example(section)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    ((group, entries),) = project["entry-points"].items()
    modules = {name.removesuffix(".py"): text for name, text in files.items() if name.endswith(".py")}
    install(folder, group, entries, modules, name=project["name"])
    return files
