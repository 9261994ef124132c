"""Sentences of `planner.events.failures`."""

from typing import assert_never

from planner.base.text import counted, duration
from planner.events import failures
from planner.wording.sentence import text_of
from planner.wording.stopping import newest


def _where(rank: int, node: str | None) -> str:
    """`worker 3 on node 1f2e3d4c`: the beginning of Ray's id tells nodes apart."""
    return f"worker {rank} on node {'?' if node is None else node[:8]}"


@text_of.register
def _worker_died(event: failures.WorkerDied) -> str:
    return f"{_where(event.rank, event.node)} died (killed, or out of memory)"


def memory_text(error: str) -> str:
    """An error's text, if a GPU had no memory left, with what to lower. Empty for other errors."""
    if "out of memory" not in error.lower():  # torch.OutOfMemoryError, and CUDA's own where torch asks for none
        return ""
    # Of torch's text, the first two sentences have the numbers. The rest is for people who tune its allocator.
    told = ". ".join(error.splitlines()[0].split(". ")[:2]).rstrip(".")
    return f"{told}. Lower batch.max_micro, or set train.activation_checkpointing"


@text_of.register
def _worker_failed(event: failures.WorkerFailed) -> str:
    return f"{_where(event.rank, event.node)}: {memory_text(event.error) or event.error}"


@text_of.register
def _user_code_raised(event: failures.UserCodeRaised) -> str:
    what = f"{event.kind}: {event.message}" if event.message else event.kind
    place = f" ({event.place})" if event.place else ""
    return f"{_where(event.rank, event.node)}: train() raised {what}{place}"


@text_of.register
def _start_failed(event: failures.StartFailed) -> str:
    return f"they could not be started: {event.error}"


@text_of.register
def _hung(event: failures.Hung) -> str:
    deaf = f", and {counted(event.deaf, 'worker')} did not answer" if event.deaf else ""
    return f"no progress for {duration(event.silence_s)} (limit {duration(event.limit_s)}){deaf}"


@text_of.register
def _park_timed_out(event: failures.ParkTimedOut) -> str:
    return f"they had not parked after {duration(event.after_s)}"


@text_of.register
def _workers_failed(event: failures.WorkersFailed) -> str:
    return f"the workers failed: {text_of(event.reason)}"


@text_of.register
def _node_left_out(event: failures.NodeLeftOut) -> str:
    return f"node {event.node} is left out: its workers died {event.deaths} times within the hour"


@text_of.register
def _nodes_lost(event: failures.NodesLost) -> str:
    if event.told:
        return f"{counted(event.nodes - event.told, 'more node')} lost, {event.nodes} in all"
    return f"{counted(event.nodes, 'node')} lost: training resumes from {newest(from_memory=event.from_memory)}"


@text_of.register
def _memory_lost(event: failures.MemoryLost) -> str:
    return f"{text_of(event.reason)}. The next group looks for what is left"


@text_of.register
def _gives_up(event: failures.GivesUp) -> str:
    reason = text_of(event.reason)
    match event.why:
        case "mistake_at_start":
            return f"{reason}. planner does not try again: the code failed before the first step"
        case "same_mistake":
            twice = "the code failed twice in a row at this line, without a new step in between"
            return f"{reason}. planner does not try again: {twice}"
        case "no_progress":
            return f"the workers failed {event.failures} times in a row without progress: {reason}"
        case "too_often":
            return f"the workers failed {event.failures} times within the hour: {reason}"
        case _:
            assert_never(event.why)


@text_of.register
def _place(event: failures.Place) -> str:
    others = f" and {event.others} more" if event.others else ""
    return f"{_where(event.rank, event.node)}{others}: {event.location or 'does not answer'}"


@text_of.register
def _whereabouts(event: failures.Whereabouts) -> str:
    return "where they were: " + "; ".join(text_of(place) for place in event.places)


@text_of.register
def _unplaced(event: failures.Unplaced) -> str:
    return f"only {event.placed} of {event.asked} workers got a place"


@text_of.register
def _held(event: failures.Held) -> str:
    most = counted(event.most, "worker")
    return f"{text_of(event.reason)}, so planner uses no more than {most} for {duration(event.hold_s)}"


@text_of.register
def _autoscaler_rejects(event: failures.AutoscalerRejects) -> str:
    return f"the autoscaler rejected {event.workers} workers: asking for {event.now_asked}"


@text_of.register
def _no_nodes(event: failures.NoNodes) -> str:
    reason = f": {event.reason}" if event.reason else ""
    return f"asked for {counted(event.workers, 'worker')}, but the cloud gives no {event.node_type} node{reason}"


@text_of.register
def _controller_died(_event: failures.ControllerDied) -> str:
    return "the controller of the workers has died (killed, or out of memory)"


@text_of.register
def _controller_silent(event: failures.ControllerSilent) -> str:
    what = "answered for" if event.has_started else "started after"
    return f"the controller of the workers has not {what} {duration(event.silent_s)}"


@text_of.register
def _controller_replaced(event: failures.ControllerReplaced) -> str:
    return f"{text_of(event.reason)}: planner starts another one"
