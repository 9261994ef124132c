"""An audit as text: a table of its generations and the verdict. Also as JSON."""

import dataclasses
import json
from collections.abc import Sequence

from planner.base.text import counted
from planner.provenance.audit import Audit
from planner.provenance.set_uses import SetUse
from planner.report.plan_table import BY_LENGTH, split_text
from planner.report.text_columns import aligned

_MOST_STEPS = 10
_MOST_SETS = 50
_DRIVER = {"alive": " (the run is still going)", "unknown": " (a driver on another machine may still run it)"}


def phase_table(audit: Audit) -> list[str]:
    """Return a header, then a line per generation of the committed lineage."""
    rows = [
        (
            str(phase.generation),
            str(phase.world_size),
            BY_LENGTH if phase.by_length else split_text(phase.shares),
            f"{phase.accumulation_steps}{'+' if phase.by_length else ''}",
            f"[{phase.first_step}, {phase.end_step})",
            str(phase.recomputed_before),
        )
        for phase in audit.phases
    ]
    return aligned([("generation", "workers", "split", "rounds", "steps", "recomputed before"), *rows], left={2, 4})


def verdict(audit: Audit, driver: str = "none") -> list[str]:
    """Return the audit's result as lines. The last line is the verdict.

    Args:
        audit: the audit.
        driver: the state of the run's driver, from `planner.store.lease.driver_state`.
    """
    batches = ", then ".join(str(batch) for batch in audit.global_batches)
    done = "finished" if audit.steps == audit.total_steps else f"of {audit.total_steps} planned"
    lines = [
        f"steps         {audit.steps} ({done})",
        f"samples       {audit.samples}",
        f"lost          {audit.lost}",
        f"repeated      {audit.repeated}",
        f"recomputed    {counted(audit.recomputed, 'step')}, done again after a loss or a stop, and counted once",
        f"global batch  {batches or 'unknown'}{' (constant)' if len(audit.global_batches) == 1 else ''}",
    ]
    if audit.after:
        lines.append(f"after         {audit.after}")
    if resumed := [phase.first_step for phase in audit.phases if phase.from_memory]:
        lines.append(f"from memory   {counted(len(resumed), 'generation')}, {_steps_text(resumed)}")
    if audit.held_out:
        (first, before), *more = audit.held_out
        later = f", {more[-1][1]:.4f} at step {more[-1][0]}" if more else ""
        lines.append(f"held-out loss {before:.4f} at step {first}{later}")
    lines += [f"set           {text}" for text in _set_texts(audit.sets)]
    if audit.weights:
        lines.append(f"weights       SHA-256 {audit.weights}")
    if audit.mismatched:
        lines.append(f"mismatched    {counted(audit.mismatched, 'step')}, so lost and repeated are not known")
    if audit.uncommitted:
        lines.append(
            f"uncommitted   {counted(audit.uncommitted, 'step')} after the newest commit{_DRIVER.get(driver, '')}"
        )
    lines += [f"WRONG         {finding}" for finding in audit.findings]
    if audit.clean:
        lines.append("audit: clean. Every committed step used exactly its samples; the chain is intact")
    else:
        lines.append("audit: NOT CLEAN. Do not trust this run before you know why")
    return lines


def _set_texts(sets: Sequence[SetUse]) -> list[str]:
    """What the run used of each set of a mixture, one text each."""
    texts = [f"{each.name}: {_use_text(each)}" for each in sets[:_MOST_SETS]]
    more = len(sets) - _MOST_SETS
    return [*texts, *([f"and {counted(more, 'set')} more"] if more > 0 else [])]


def _use_text(use: SetUse) -> str:
    if not use.whole_epochs:
        return f"{use.after} of its {counted(use.samples, 'sample')}, in an epoch that is not complete"
    after = f", {use.after} in the next" if use.after else ""
    return f"all {counted(use.samples, 'sample')} once in each of {counted(use.whole_epochs, 'whole epoch')}{after}"


def _steps_text(steps: Sequence[int]) -> str:
    """`at steps 5, 8`, of many only the last ones."""
    listed = ", ".join(str(step) for step in steps[-_MOST_STEPS:])
    return f"at {'step' if len(steps) == 1 else 'steps'} {'..., ' if len(steps) > _MOST_STEPS else ''}{listed}"


def audit_json(audit: Audit) -> str:
    """The audit as one JSON object. Its keys are `clean` and the fields of `planner.provenance.audit.Audit`."""
    return json.dumps({"clean": audit.clean, **dataclasses.asdict(audit)}, indent=1)
