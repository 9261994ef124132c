"""The job's section `after`: the earlier run whose weights this run begins with."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from planner.job.section import Section


class After(Section):
    """An earlier run of planner. This run's first weights are those of one of its commits."""

    run: str = Field(min_length=1, description="folder or URL of the earlier run")
    step: int | None = Field(
        default=None,
        ge=1,
        lt=2**63,
        description="the step whose commit gives the weights. null means the last one of a finished run",
    )
    manifest: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="digest of that commit's manifest. planner finds it, and stores it with the run. If you write it, "
        "no other commit is used",
    )

    @property
    def text(self) -> str:
        """Which commit of which run, for people: `step 40 of /shared/sft`."""
        return f"step {self.step} of {self.run}" if self.step is not None else self.run

    @property
    def whole_text(self) -> str:
        """The commit with its digest, for people: `step 40 of /shared/sft, manifest 0f3a...`."""
        return f"{self.text}, manifest {self.manifest}" if self.manifest else self.text


def _by_run(value: Any) -> Any:
    return {"run": value} if isinstance(value, str) else value


AfterRun = Annotated[After | None, BeforeValidator(_by_run)]
"""`after: RUN` or `after: {run: RUN, step: STEP}`"""
