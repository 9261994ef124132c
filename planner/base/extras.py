"""How to install the extras of planner's `pyproject.toml`, which only some jobs need."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for a message.

    It names a checkout or a wheel: planner's distribution, exact-batch-planner, is not on PyPI yet, and `planner` on
    PyPI is another package.
    """
    return f"pip install '.[{extra}]' in planner's checkout, or pip install 'PATH_OF_ITS_WHEEL[{extra}]'"
