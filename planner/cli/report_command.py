"""`planner report RUN [RUN ...]`: one static page about one run, or several compared."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from planner.base.disk import absolute_url
from planner.base.text import how_to_install
from planner.cli.activity import doing, progress_bar
from planner.cli.new_file import require_free, write_new_file
from planner.cli.options import CodeOption, ForceOption
from planner.errors import NewerFormat, PlanError, PlannerError, UserError
from planner.provenance.audit import Audit
from planner.report.page.html import Drawing
from planner.report.page.page import page
from planner.report.page.run_values import ReportedRun
from planner.report.run_table import run_detail
from planner.report.spot_text import spot_of
from planner.runner.audit_run import audit
from planner.store.run_folder import RunFolder, no_run_error
from planner.store.storage import Storage
from planner.store.survey import Survey, is_run, survey
from planner.story.read import read_story
from planner.story.values import RunHistory

MOST_RUNS = 8
"""on one page: more colours and dash patterns cannot be told apart"""


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="runs' folders or URLs", show_default=False)],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="the page to write")] = "report.html",
    force: ForceOption = False,
    no_audit: Annotated[
        bool, typer.Option("--no-audit", help="leave out the audit, which reads all data again")
    ] = False,
    code: CodeOption = "",
) -> None:
    """Write one static HTML page about a run, or about several compared. It needs no network and no server.

    It shows workers over time, loss, speed, where the time went, commits, the audit and the environment.
    It also works while a run is going on.
    Example: planner report runs/my-run -o report.html
    """
    _require_good(runs, output)
    _require_matplotlib()
    file = Path(output)
    require_free(file, force=force)
    found = []
    for at, (url, label) in enumerate(_labelled(runs)):
        try:
            found.append(_reported(url, label, f"run {at}", code, is_audited=not no_audit))
        except (NewerFormat, PlanError) as error:
            raise type(error)(f"{url}: {error}") from error
    text = page(found, _overlay(found))
    write_new_file(file, text, force=force)
    typer.echo(f"wrote {output} ({len(text.encode()) / 1e6:.2f} MB). Open it in a browser")


def _require_good(runs: Sequence[str], output: str) -> None:
    if "" in runs:
        raise UserError("RUN is empty. Write a run's folder or URL")
    if not output:
        raise UserError("-o is empty. Write the path of the page, such as report.html")
    if len(runs) > MOST_RUNS:
        raise UserError(f"found {len(runs)} runs, and one page compares at most {MOST_RUNS}. Write fewer runs")


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401, ICN001  only whether it is there
    except ImportError as error:
        raise UserError(f"planner report needs matplotlib. Install it: {how_to_install('report')}") from error


def _labelled(runs: Sequence[str]) -> list[tuple[str, str]]:
    """Each run's URL with the shortest end of it that no other run has."""
    urls = [absolute_url(run).rstrip("/") for run in runs]
    parts = [url.split("/") for url in urls]
    labels = []
    for own in parts:
        length = next(
            (n for n in range(1, len(own) + 1) if sum(other[-n:] == own[-n:] for other in parts) == 1), len(own)
        )
        labels.append("/".join(own[-length:]))
    return [
        (url, label if labels.count(label) == 1 else f"{label} ({at})")
        for at, (url, label) in enumerate(zip(urls, labels, strict=True), start=1)
    ]


def _reported(url: str, label: str, key: str, code: str, *, is_audited: bool) -> ReportedRun:
    """Read, audit and draw one run. `key` differs from those of the page's other runs.

    Raises:
        NewerFormat: another version of planner wrote a part of it.
        PlanError: a generation on record has no plan: it is damaged, or of a newer version of planner.
        StoreError: there is no run, or its store cannot be reached.
    """
    if not is_run(Storage(url)):
        raise no_run_error(url)
    with doing(f"reading {url}"):
        found = survey(url)
    with progress_bar(f"{label}: generations read") as progress:
        story = read_story(RunFolder(Storage(url)), label, found.newest, progress)
    verdict, reason = _audited(url, label, code) if is_audited else (None, "The report was made with --no-audit.")
    with doing(f"{label}: drawing"):
        from planner.pictures.run_pictures import draw_run  # matplotlib

        drawings = draw_run(story, key)
    return ReportedRun(
        label=label,
        story=story,
        detail=run_detail(found),
        audit=verdict,
        not_audited=reason,
        job=_job_text(found),
        spot=spot_of(story.capacity, found.job),
        drawings=drawings,
    )


def _audited(url: str, label: str, code: str) -> tuple[Audit | None, str]:
    """The audit, or why there is none."""
    try:
        with progress_bar(f"{label}: steps audited") as progress:
            return audit(url, code=code, progress=progress), ""
    except NewerFormat:
        raise
    except PlannerError as error:
        return None, f"{error}."


def _job_text(found: Survey) -> str:
    job = found.job
    return json.dumps(job.model_dump(mode="json", by_alias=True), indent=2) if job else ""


def _overlay(found: Sequence[ReportedRun]) -> dict[str, Drawing]:
    if len(found) < 2:
        return {}
    from planner.pictures.run_pictures import draw_overlay  # matplotlib

    stories: list[RunHistory] = [run.story for run in found]
    return draw_overlay(stories, [run.label for run in found])
