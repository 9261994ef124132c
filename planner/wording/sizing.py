"""Sentences of `planner.events.sizing`."""

from planner.base.text import counted, duration
from planner.events import sizing
from planner.wording.sentence import text_of


@text_of.register
def _move(event: sizing.Move) -> str:
    return f"{event.size} -> {event.to}, {_step_times(event)}"


def _step_times(move: sizing.Move) -> str:
    """`0.80 s per step instead of 1.0 s`. Before the first measurement, by the plan's cost."""
    if move.step_s is None or move.to_step_s is None:
        return f"the time of {counted(move.to_samples, 'sample')} per step instead of {move.samples}"
    shared = " (if nodes had cores of their own)" if move.on_one_machine and move.to != move.size else ""
    return f"{duration(move.to_step_s)} per step instead of {duration(move.step_s)}{shared}"


@text_of.register
def _too_little_room(event: sizing.TooLittleRoom) -> str:
    return f"there is room for {counted(event.room, 'worker')}, and the job needs {event.least}"


@text_of.register
def _workers_leave(event: sizing.WorkersLeave) -> str:
    move = event.move
    fewer = "" if move.to == event.room else f" ({move.to} are as fast)"
    return f"there is room for only {event.room} of {counted(move.size, 'worker')}{fewer}: {_step_times(move)}"


@text_of.register
def _pays(event: sizing.Pays) -> str:
    return f"{text_of(event.move)}: it takes {_won_back(event)}"


def _won_back(event: sizing.Pays | sizing.NotWonBack) -> str:
    pause = f"a pause of {duration(event.pause_s)}"
    return f"{duration(event.win_back_s)} to win back {pause}, and {duration(event.remaining_s)} of training remain"


@text_of.register
def _pays_by_plan(event: sizing.PaysByPlan) -> str:
    times = event.move.samples / event.move.to_samples
    return f"{text_of(event.move)}: {times:.1f} times as fast by the plan (no step was measured yet)"


@text_of.register
def _uses_every_node(event: sizing.UsesEveryNode) -> str:
    return f"{event.size} -> {event.to}: this run uses every node"


@text_of.register
def _uses_all(event: sizing.UsesAll) -> str:
    return f"the run already has all that it may use now, {counted(event.size, 'worker')}"


@text_of.register
def _not_needed(event: sizing.NotNeeded) -> str:
    time = f"the time of {counted(event.samples, 'sample')}"
    return f"a step takes {time} at {counted(event.room, 'worker')} and at {event.size}: nothing to gain"


@text_of.register
def _not_faster(event: sizing.NotFaster) -> str:
    return f"more workers would not be faster by {event.least:.0%}: {text_of(event.move)}"


@text_of.register
def _not_won_back(event: sizing.NotWonBack) -> str:
    return f"it would take {_won_back(event)}: {text_of(event.move)}"


@text_of.register
def _not_measured(event: sizing.NotMeasured) -> str:
    slower = f"less than {event.least:g} times as fast by the plan"
    return f"no step was measured yet, and {slower}: {text_of(event.move)}"


@text_of.register
def _room_just_changed(event: sizing.RoomJustChanged) -> str:
    changed = "no step was measured yet, and the room has just changed"
    return f"{changed}, so {_in(event.wait_s)}: {text_of(event.move)}"


@text_of.register
def _more_may_come(event: sizing.MoreMayCome) -> str:
    return f"more may come and one resize is cheaper than two, so {_in(event.wait_s)}: {text_of(event.move)}"


@text_of.register
def _stays_too_short(event: sizing.StaysTooShort) -> str:
    often = f"in {event.num_short} of the last {counted(event.num_times, 'time')}"
    lasted = f"room for {event.move.to} lasted under {duration(event.break_even_s)} {often}"
    return (
        f"{lasted}, too short to pay for {duration(event.pauses_s)} of pauses, so {_in(event.wait_s)}: "
        f"{text_of(event.move)}"
    )


@text_of.register
def _restarts_too_often(event: sizing.RestartsTooOften) -> str:
    expected = f"a loss or a notice is expected within {duration(event.expected_s)}, and restarts on all nodes anyway"
    return f"{expected}. A resize pays after {duration(event.needed_s)}, so {_in(event.wait_s)}: {text_of(event.move)}"


def _in(wait_s: float) -> str:
    return f"resize in {duration(wait_s)} if the room lasts"


@text_of.register
def _workers_max(event: sizing.WorkersMax) -> str:
    return f"workers.max is {event.most}"


@text_of.register
def _global_batch_used_up(event: sizing.GlobalBatchUsedUp) -> str:
    return f"a global batch of {counted(event.samples, 'sample')} has work for no more workers"


@text_of.register
def _nodes_left_out(event: sizing.NodesLeftOut) -> str:
    number = len(event.nodes)
    return f"node {event.nodes[0]} is left out" if number == 1 else f"{number} nodes are left out"


@text_of.register
def _on_hold(event: sizing.OnHold) -> str:
    most = counted(event.most, "worker")
    return f"a start with more than {most} failed, and planner tries more in {duration(event.left_s)}"


@text_of.register
def _places_unused(event: sizing.PlacesUnused) -> str:
    reasons = ", and ".join(text_of(reason) for reason in event.reasons)
    return f"{event.size} of {counted(event.places, 'place')} used, because {reasons}"


@text_of.register
def _resizes(event: sizing.Resizes) -> str:
    return f"resize: {text_of(event.reason)}"


@text_of.register
def _resized(event: sizing.Resized) -> str:
    done_again = f", with {counted(event.steps_again, 'step')} done again" if event.steps_again else ""
    return f"{event.size} -> {event.to} workers cost {duration(event.cost_s)} of training{done_again}"


@text_of.register
def _waited(event: sizing.Waited) -> str:
    return f"no group could start for {duration(event.waited_s)}: too little room"
