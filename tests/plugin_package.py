"""Packages that add something to planner by an entry point: made in a folder, which then stands on `sys.path`."""


def install(folder, group, entries, modules, name="planner-extra"):
    """Lay down a distribution: `entries` are {"NAME": "MODULE:OBJECT"}, `modules` are {"MODULE": its text}."""
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    information = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    lines = [f"[{group}]", *(f"{entry} = {target}" for entry, target in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
