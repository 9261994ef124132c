"""What a plan says of an `auto` cap on micro-batches."""

from planner.job import Job


def auto_note(job: Job, *, has_gpu: bool = False, has_rates: bool = False) -> str:
    """What a plan assumes of an `auto` cap where memory is not known. Empty if numbers decide.

    Args:
        job: the job.
        has_gpu: whether the user has named one. Else the text says how.
        has_rates: whether the plan has the caps of a measured run.
    """
    cap = job.batch.auto_cap
    if not cap or (cap == "max_micro" and job.batch.max_tokens is not None):
        return ""
    if has_rates:
        return (
            f"batch.{cap} auto: the table has the micro-batches of the measured run. At counts that it did not have, "
            "they are those of the next smaller one."
        )
    on_gpu = bool(job.workers.gpus)
    place = "its GPUs" if on_gpu else "the memory of its machines"
    how = " planner plan JOB --gpu NAME shows what fits" if on_gpu and not has_gpu else ""
    return (
        f"batch.{cap} auto: each worker group computes what fits into {place}. The table assumes that a share fits "
        f"whole.{how}"
    )
