"""What the page says of one run, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.provenance.audit import Audit
from planner.report.page.html import Drawing
from planner.report.run_table import RunDetail
from planner.report.spot_text import Spot
from planner.story.values import RunHistory


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """One run of a report."""

    label: str
    """its name, different from those of the page's other runs"""
    story: RunHistory
    detail: RunDetail
    audit: Audit | None
    not_audited: str
    """why there is no audit, empty if there is one"""
    job: str
    """its newest job as text, empty if it is not known"""
    drawings: Mapping[str, Drawing]
    """by name, as `planner.pictures.run_pictures.draw_run` names them"""
    spot: Spot | None = None
    """what it kept of its nodes' work. None if its nodes did not change"""
