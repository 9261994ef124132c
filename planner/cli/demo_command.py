"""`planner demo`: trains on this machine while local nodes get notice, join and die, and audits the run."""

import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import DryRunOption, console
from planner.cli.run_command import closing_text
from planner.cli.terminal import display_on
from planner.dispatch.ray_internal import drain_node
from planner.local_cluster.embedded import EmbeddedCluster
from planner.report.audits import phase_table, verdict
from planner.report.dry_run_text import NOTHING_KEPT
from planner.runner import execute
from planner.runner.audit_run import audit
from planner.runner.display import Say, StartedRun
from planner.runner.job_argument import read_job
from planner.runner.local import Local
from planner.runner.start import plan_start
from planner.store.storage import Storage
from planner.story.run_story import RunStory

# It is part of the package, so `planner demo` needs no checkout.
_OWN_JOB = Path(__file__).with_name("demo.yaml")
# When the cluster changes, as fractions of the job's steps.
_NOTICE_AT, _GAIN_AT, _LOSE_AT = 0.2, 0.4, 0.7
_NODES_AT_START, _NODES_GAINED = 4, 2
_NOTICE_S = 30.0


def demo(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="a job file", show_default="the one that comes with planner")
    ] = str(_OWN_JOB),
    dry_run: DryRunOption = False,
) -> None:
    """Train on four local nodes: one gets a preemption notice, two join, one is killed. Then audit the run.

    It needs no GPU and takes three to six minutes. Exits with 1 if the audit finds anything wrong.
    """
    spec = read_job(job)
    path = _fresh_path(spec.run_path)
    spec = spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"path": path})})
    out = console()
    again = shlex.join(["planner", "run", job, "--set", f"checkpoint.path={path}"])
    start = plan_start(spec, Local(nodes=_NODES_AT_START), display=display_on(out), resume_command=again)
    promise = f"{start.total_steps} steps of exactly {spec.batch.global_batch} samples"
    start = replace(start, opening=f"{spec.name}: {promise}, in {path}")
    script = _Script(start.total_steps)
    display = display_on(out, script)
    if dry_run:
        for line in (start.opening, *script.summary, "", NOTHING_KEPT):
            display.say(line)
        return
    result = execute.run(start, display)
    display.say(closing_text(start.job, result))
    if not result.finished:
        raise typer.Exit(130)
    # The user named the code of a loop of their own with the job.
    with display.progress("steps audited") as progress:
        code = start.job.data.path if start.job.is_own else ""
        audited = audit(result.url, code=code, progress=progress)
    header, *rows = phase_table(audited)
    out.print(f"\n{header}", style="bold", soft_wrap=True)
    for line in (*rows, "", *verdict(audited)):
        display.say(line)
    if not audited.clean:
        raise typer.Exit(1)


class _Script:
    """Changes the local cluster when the run reaches certain steps."""

    def __init__(self, total_steps: int) -> None:
        notice_at, gain_at, lose_at = (int(total_steps * part) for part in (_NOTICE_AT, _GAIN_AT, _LOSE_AT))
        self._acts = [(notice_at, self._give_notice), (gain_at, self._gain), (lose_at, self._lose)]
        self.summary = (
            f"{_NODES_AT_START} local nodes with room for a worker each",
            f"from step {notice_at}: one of them has notice to go in {_NOTICE_S:.0f} s",
            f"from step {gain_at}: {_NODES_GAINED} nodes join",
            f"from step {lose_at}: a node is killed without notice",
            "at the end: the audit",
        )
        """what will happen, one line each"""
        self._acting: threading.Thread | None = None

    def __call__(self, started: StartedRun, say: Say, story: RunStory) -> None:
        if self._acts and story.step >= self._acts[0][0] and not (self._acting and self._acting.is_alive()):
            (_, act), cluster = self._acts.pop(0), started.cluster
            assert cluster is not None
            # In a thread, because starting nodes takes seconds and would stop the display.
            self._acting = threading.Thread(target=lambda: say(f"demo: {act(cluster)}"), daemon=True)
            self._acting.start()

    @staticmethod
    def _give_notice(cluster: EmbeddedCluster) -> str:
        drain_node(cluster.nodes()[-1], _NOTICE_S, "demo")
        return f"one of {_NODES_AT_START} nodes has notice to go in {_NOTICE_S:.0f} s"

    @staticmethod
    def _gain(cluster: EmbeddedCluster) -> str:
        for _ in range(_NODES_GAINED):
            cluster.add_node()
        return f"{_NODES_GAINED} nodes are new"

    @staticmethod
    def _lose(cluster: EmbeddedCluster) -> str:
        cluster.kill_node(cluster.nodes()[-1])
        return "a node was killed without notice"


def _fresh_path(path: str) -> str:
    """Return `path`, or the first of `path-2`, `path-3`, ... that does not exist."""
    number = 1
    fresh = path
    while Storage(fresh).exists(""):
        number += 1
        fresh = f"{path}-{number}"
    return fresh
