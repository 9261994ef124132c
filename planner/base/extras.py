"""How to install what planner needs only for some jobs: the extras of its `pyproject.toml`."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra, for a message.

    planner's distribution, exact-batch-planner, is not on PyPI yet, and `planner` there is another package: so the
    command names a checkout or a wheel.
    """
    return f"pip install '.[{extra}]' in planner's checkout, or pip install 'PATH_OF_ITS_WHEEL[{extra}]'"
