"""Keeps a training recipe's global batch exact on whatever GPUs Ray grants.

The Python interface is the names in `__all__`. Each is imported when it is first used: `import planner` alone loads
neither torch nor Ray. docs/reference/python-api.md describes them.
"""

import importlib
from typing import TYPE_CHECKING, Any

from planner import errors as errors  # all of these names raise `planner.errors.PlannerError`

if TYPE_CHECKING:
    from planner.job import Job
    from planner.own import Run
    from planner.plan import Plan
    from planner.runner.audit_run import audit
    from planner.runner.job_argument import plans, read_job
    from planner.runner.run_job import run

    __version__: str

__all__ = ["Job", "Plan", "Run", "audit", "plans", "read_job", "run"]

_HOMES = {
    "Job": "planner.job:Job",
    "Plan": "planner.plan:Plan",
    "Run": "planner.own:Run",
    "__version__": "planner.base.version:VERSION",
    "audit": "planner.runner.audit_run:audit",
    "plans": "planner.runner.job_argument:plans",
    "read_job": "planner.runner.job_argument:read_job",
    "run": "planner.runner.run_job:run",
}


if not TYPE_CHECKING:  # with it, a type checker would accept any name at all

    def __getattr__(name: str) -> Any:
        """Import a public name from its module on first use (PEP 562)."""
        if name not in _HOMES:
            raise AttributeError(f"module 'planner' has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        value = globals()[name] = getattr(importlib.import_module(module), attribute)
        return value


def __dir__() -> list[str]:
    """The public names and the names that are loaded already."""
    return sorted({*globals(), *_HOMES})
