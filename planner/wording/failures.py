"""Sentences of `planner.events.failures`."""

from collections.abc import Mapping
from typing import assert_never

from planner.base.disk import size_text
from planner.base.memory_errors import MemoryPlace
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
    """An error's text, if a device had no memory left, with what to lower. Empty for other errors."""
    # torch.OutOfMemoryError, CUDA's own where torch asks for none, and that of torch's allocator on the CPU.
    if not any(text in error.lower() for text in ("out of memory", "can't allocate memory")):
        return ""
    # Of torch's text, the first two sentences have the numbers. The rest is for people who tune its allocator.
    told = ". ".join(error.splitlines()[0].split(". ")[:2]).rstrip(".")
    return f"{told}. Lower batch.max_micro, or set train.activation_checkpointing"


@text_of.register
def _worker_failed(event: failures.WorkerFailed) -> str:
    return f"{_where(event.rank, event.node)}: {memory_text(event.error) or event.error}"


_PLACES: Mapping[MemoryPlace, str] = {
    "forward": "in the forward pass",
    "loss": "in the loss",
    "backward": "in the backward pass",
    "evaluation": "in the evaluation",
    "optimizer": "in the optimizer's step",
    "start": "before the first step",
    "data": "while it read rows",
    "reference": "while it computed the reference's log-probabilities",
    "saving": "while it saved a step",
}


def _caps(max_micro: int, max_tokens: int | None) -> str:
    """`batch.max_micro: 8`, and the cap on tokens if there is one."""
    tokens = "" if max_tokens is None else f" and batch.max_tokens: {max_tokens}"
    return f"batch.max_micro: {max_micro}{tokens}"


@text_of.register
def _out_of_memory(event: failures.OutOfMemory) -> str:
    asked = "" if event.asked_bytes is None else f" (it asked for {size_text(event.asked_bytes)})"
    return f"{_where(event.rank, event.node)}, {event.device}: out of memory {_PLACES[event.place]}{asked}"


@text_of.register
def _cap_lowered(event: failures.CapLowered) -> str:
    was = _caps(event.reason.max_micro, event.reason.max_tokens)
    now = _caps(event.max_micro, event.max_tokens)
    return f"{text_of(event.reason)}. On {event.reason.device}, this run goes on with {now} in place of {was}"


@text_of.register
def _stops_for_memory(event: failures.StopsForMemory) -> str:
    reason, found = text_of(event.reason), event.reason
    write = "" if event.max_micro is None else _caps(event.max_micro, event.max_tokens)
    match event.why:
        case "bitwise":
            change = f"Write {write}, and resume with planner run JOB --accept recipe" if write else _OTHER_WAYS
            return f"{reason}. With batch.equality: bitwise, micro-batches decide the bits. {change}"
        case "one_sample":
            return f"{reason}, with one sample in a micro-batch. {_OTHER_WAYS}"
        case "again":
            now = _caps(found.max_micro, found.max_tokens)
            again = "for the second time there without a new step in between"
            return f"{reason}, {again}, with {now}: a lower cap does not help. {_OTHER_WAYS}"
        case _:
            assert_never(event.why)


_OTHER_WAYS = (
    "To need less memory, set train.precision: bf16 or train.activation_checkpointing: true, train adapters "
    "(model.lora), lower model.context, or use more or larger devices"
)


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
