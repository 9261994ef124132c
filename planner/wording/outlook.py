"""Sentences of `planner.events.outlook`."""

from typing import assert_never

from planner.base.text import about, counted, duration
from planner.events import outlook
from planner.wording.sentence import text_of, text_of_all


@text_of.register
def _starts(event: outlook.Starts) -> str:
    workers = counted(event.size, "worker")
    match event.how:
        case "new":
            return f"starting {workers}"
        case "after_stop":
            return f"continuing with {workers}"
        case "loading":
            return f"{workers} started, loading"
        case _:
            assert_never(event.how)


@text_of.register
def _will_stop(event: outlook.WillStop) -> str:
    how = "hand it over in memory" if event.in_memory else "commit"
    return f"all workers stop at the same step and {how}, then up to {counted(event.most, 'worker')} continue"


@text_of.register
def _will_start(event: outlook.WillStart) -> str:
    return f"{counted(event.size, 'worker')} {'continue' if event.planned else 'start'}"


@text_of.register
def _run_ends(_event: outlook.RunEnds) -> str:
    return "the run ends"


@text_of.register
def _hold_lasts(event: outlook.HoldLasts) -> str:
    most = counted(event.most, "worker")
    return f"on hold: no more than {most} for {duration(event.left_s)}, because a start with more failed"


@text_of.register
def _first_step_pending(_event: outlook.FirstStepPending) -> str:
    return "the first step is not done yet"


@text_of.register
def _old_group_ends(_event: outlook.OldGroupEnds) -> str:
    return "the next group starts when the workers of the last one have ended"


@text_of.register
def _no_resize(event: outlook.NoResize) -> str:
    return f"no resize: {text_of(event.reason)}"


@text_of.register
def _silence(event: outlook.Silence) -> str:
    return f"no progress for {duration(event.silence_s)}: planner ends the group after {duration(event.limit_s)}"


@text_of.register
def _notice_runs(event: outlook.NoticeRuns) -> str:
    left = "no deadline" if event.left_s is None else f"{duration(event.left_s)} left"
    notice = f"notice for {counted(event.leaving, 'worker')} of {event.size}, {left}"
    when = "later" if event.stops_in_s is None else f"in {duration(event.stops_in_s)}"
    if event.to is None:
        fits = f"{notice}, and only {counted(event.room, 'worker')} will fit"
        return f"{fits}: training continues, and stops {when} ({text_of(event.needs)})"
    how = "hand over in memory" if event.in_memory else "commit"
    return f"{notice}: all stop {when} and {how}, then {counted(event.to, 'worker')} continue"


@text_of.register
def _awaits_newcomers(event: outlook.AwaitsNewcomers) -> str:
    newcomers = counted(event.to - event.size, "newcomer")
    return (
        f"{event.size} -> {event.to} workers as soon as {newcomers} can train "
        f"({duration(event.so_far_s)} so far, at most {duration(event.most_s)})"
    )


@text_of.register
def _awaits_parked(event: outlook.AwaitsParked) -> str:
    how = "copied their step into memory" if event.in_memory else "committed"
    wait = f"{event.parked} of {counted(event.size, 'worker')} have {how} and parked"
    limit = "" if event.left_s is None else f" (planner waits {duration(event.left_s)} more)"
    return f"{wait}{limit}. Then: {text_of_all(event.then)}"


@text_of.register
def _stop_time(event: outlook.StopTime) -> str:
    """`: about 12 s (the last commit took 10 s)`, to stand behind what is waited for."""
    if event.commit_s is None:
        return " (no commit was measured yet, so the time is not known)"
    last = f"the last commit took {duration(event.commit_s)}"
    if event.left_s is None:
        return f" ({last}, and no step was measured yet)"
    if event.left_s <= 0:
        return f": longer than usual, {duration(event.passed_s)} so far ({last})"
    return f": {about(event.left_s)} ({last})"


@text_of.register
def _stops_in_memory(event: outlook.StopsInMemory) -> str:
    took = "" if event.copy_s is None else f" (the last copy took {duration(event.copy_s)})"
    if event.done_step is None:
        return f"all workers finish their step, then hand it over in memory{took}"
    return f"step {event.done_step} is done: waiting until it is copied into memory{took}"


@text_of.register
def _stops_mid_step(event: outlook.StopsMidStep) -> str:
    before = "hand the one before over in memory" if event.in_memory else "make the one before durable"
    return f"all workers give up their step, then {before}"


@text_of.register
def _stops_durably(event: outlook.StopsDurably) -> str:
    # It may be durable by now: workers say so with the next step.
    done, held = f". When step {event.done_step} was done", f", step {event.held_step} was still being written"
    still = "" if event.held_step is None else f"{done}{held}"
    return f"all workers finish their step, then it becomes durable{text_of(event.time)}{still}"


@text_of.register
def _awaits_durable(event: outlook.AwaitsDurable) -> str:
    step = event.step
    head = f"all {step} steps are done" if event.is_end else f"step {step} is done"
    before = "" if event.after_step is None else f" after step {event.after_step}"
    evaluated = ", and then evaluated" if event.is_evaluated else ""
    return f"{head}: waiting until step {step} is durable{before}{evaluated}{text_of(event.time)}"


@text_of.register
def _last_step_durable(event: outlook.LastStepDurable) -> str:
    return f"step {event.step} is done and durable"


@text_of.register
def _stops_without_group(event: outlook.StopsWithoutGroup) -> str:
    if not event.unsaved_step:
        return "no worker trains now, and there is nothing to commit"
    what = f"step {event.unsaved_step} may be in memory alone"
    return f"no worker trains now, and {what}: if there is room, a group starts and commits it"
