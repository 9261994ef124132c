"""An audit's verdict and a run's phases as text, and as JSON."""

import dataclasses
import json

from rich.table import Table

from planner.audit import Audit
from planner.report.plans import split_text


def phase_table(audit: Audit) -> Table:
    """One row per generation in the committed lineage."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("phase", justify="right")
    table.add_column("workers", justify="right")
    table.add_column("split", no_wrap=True)
    table.add_column("rounds", justify="right")
    table.add_column("steps", no_wrap=True)
    table.add_column("recomputed before", justify="right")
    for phase in audit.phases:
        table.add_row(
            str(phase.generation),
            str(phase.world_size),
            split_text(phase.shares),
            str(phase.accumulation_steps),
            f"[{phase.first_step}, {phase.end_step})",
            str(phase.recomputed_before),
        )
    return table


def verdict(audit: Audit) -> list[str]:
    """What the audit found, line by line; the last line is the verdict."""
    batches = ", then ".join(str(batch) for batch in audit.global_batches)
    done = "finished" if audit.steps == audit.total_steps else f"of {audit.total_steps} planned"
    lines = [
        f"steps         {audit.steps} ({done})",
        f"samples       {audit.samples}",
        f"lost          {audit.lost}",
        f"repeated      {audit.repeated}",
        f"recomputed    {audit.recomputed} steps, done again after a loss and counted once",
        f"global batch  {batches or 'unknown'}{' (constant)' if len(audit.global_batches) == 1 else ''}",
    ]
    if audit.mismatched:
        lines.append(f"mismatched    {audit.mismatched} steps, so lost and repeated are not known")
    if audit.uncommitted:
        lines.append(f"uncommitted   {audit.uncommitted} steps after the newest commit")
    lines += [f"WRONG         {finding}" for finding in audit.findings]
    if audit.clean:
        lines.append("audit: clean. Every committed step used exactly its samples; the chain is intact")
    else:
        lines.append("audit: NOT CLEAN. Do not trust this run before you know why")
    return lines


def audit_json(audit: Audit) -> str:
    """The audit as one object; its keys are `planner.audit.Audit`'s fields, and `clean`."""
    return json.dumps({"clean": audit.clean, **dataclasses.asdict(audit)}, indent=1)
