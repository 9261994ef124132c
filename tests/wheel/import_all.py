"""Run by `tests/wheel/try.sh` with the python of a clean environment: does the installed wheel bring what it imports?

Imports every module of planner, and every package that planner's source names anywhere, also inside functions.
"""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

import planner

# Package -> the extra that brings it. None of them may be installed here, so the list stays true. Only the rooms below
# need one to be imported: elsewhere they are named inside functions.
OF_EXTRAS = {
    "transformers": "hf",
    "peft": "hf",
    "datasets": "hf",
    "bs4": "hf",
    "accelerate": "trl, and hf by peft",
    "liger_kernel": "liger",
    "huggingface_hub": "hf, by transformers",
    "safetensors": "hf, by transformers",
    "matplotlib": "report",
    "mlflow": "mlflow",
    "tensorboard": "tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
    "aiohttp": "submit, by ray[default]",
}
# Room -> the one package of the list above that its modules may import at their top.
ROOMS_OF_EXTRAS = {"planner.pictures": "matplotlib", "planner.trl": "transformers"}


def main() -> None:
    """Say what was imported.

    Raises:
        AssertionError: this planner is not the installed one, or the list above is wrong.
    """
    root = Path(planner.__file__).parent
    assert root.is_relative_to(sys.prefix), f"{root} is not of {sys.prefix}"
    modules = [module.name for module in pkgutil.walk_packages(planner.__path__, "planner.")]
    packages = sorted({name for file in root.rglob("*.py") for name in named_packages(file)})
    names = [name for name in [*modules, *packages] if not name.endswith("__main__")]  # that runs the command line
    mistakes = list(filter(None, map(mistake, names)))
    assert not mistakes, "\n".join(mistakes)
    assert set(OF_EXTRAS) <= set(packages), f"no longer imported anywhere: {set(OF_EXTRAS) - set(packages)}"
    print(f"imported {len(modules)} modules; packages that they name: {', '.join(packages)}")


def mistake(name: str) -> str:
    """Why it is wrong that a module can be imported here, or cannot; empty if it is right."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        room = ".".join(name.split(".")[:2])
        lawful = name in OF_EXTRAS or (error.name is not None and error.name == ROOMS_OF_EXTRAS.get(room))
        return "" if lawful else f"{name} cannot be imported from the wheel alone: {error!r}"
    return f"{name} needs no extra {OF_EXTRAS[name]}: take it off the list" if name in OF_EXTRAS else ""


def named_packages(file: Path) -> set[str]:
    """The packages outside the standard library that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"planner"}


if __name__ == "__main__":
    main()
