"""Sentences of `planner.events.stopping`."""

import math
from typing import assert_never

from planner.base.node_market import MARKET_LABEL, ON_DEMAND
from planner.base.text import counted, duration
from planner.events import stopping
from planner.wording.sentence import text_of

_HOW_TO_LABEL = (
    "No node has this label. Set it under labels of the node types in the cluster's file, or with "
    f"ray start --labels={MARKET_LABEL}={ON_DEMAND}. Or write workers.min_on: any"
)


def newest(*, from_memory: bool) -> str:
    """What the next group starts from, after one that failed or was given up."""
    return "the newest copy in memory or the last commit" if from_memory else "the last commit"


@text_of.register
def _stop_needs(event: stopping.StopNeeds) -> str:
    """What a durable stop needs, beside a notice: `a step and a commit take 12 s`, or what was not measured yet."""
    if event.lacks is not None:
        return f"no {event.lacks} was measured yet"
    in_flight = f"a step, the commit of step {event.held_step} and another"
    commits = "a step and a" if event.held_step is None else in_flight
    return f"{commits} commit take {duration(event.stop_s)}"


@text_of.register
def _notice(event: stopping.Notice) -> str:
    left = duration(math.inf if event.left_s is None else event.left_s)
    leaving = f"notice for {counted(event.leaving, 'worker')} of {event.size}"
    note = f"resize: {leaving}, {left} left, room for {event.room}"
    if event.obstacle is None:
        return note
    return f"{note}. The last step becomes durable, and does not stay in memory: {_obstacle(event.obstacle)}"


def _obstacle(why: stopping.Obstacle) -> str:
    match why:
        case "driver_ends":
            return "the driver ends the run"
        case "no_keeper":
            return "a node of the group has no keeper"
        case "no_other_group":
            return "no other group can start"
        case "commit_is_quicker":
            return "a commit is quicker than a hand-over in memory"
        case "notice_too_short":
            return "the notice is too short for a hand-over in memory"
        case "nothing_durable":
            return "nothing became durable since the group began"
        case _:
            assert_never(why)


@text_of.register
def _hands_over(event: stopping.HandsOver) -> str:
    usual = "" if event.allowed_s is None else f" ({duration(event.allowed_s)} are allowed for that)"
    return f"all workers finish their step, then hand it over in memory{usual}"


@text_of.register
def _notice_suffices(event: stopping.NoticeSuffices) -> str:
    needed = text_of(event.needs)
    return needed if event.needs.lacks else f"{needed}: the notice is long enough to keep all steps"


@text_of.register
def _notice_too_short(event: stopping.NoticeTooShort) -> str:
    needed = text_of(event.needs)
    if event.tries_s is not None:
        return f"{needed}: planner still tries a commit for {duration(event.tries_s)}"
    return f"{needed}: the notice is too short to keep all steps"


@text_of.register
def _trains_on(event: stopping.TrainsOn) -> str:
    left = "" if event.left_s is None else f", and {duration(event.left_s)} are left"
    fits = f"notice, and only {counted(event.room, 'worker')} will fit: training continues as long as possible"
    return f"{fits} ({text_of(event.needs)}{left})"


@text_of.register
def _uses_notice(event: stopping.UsesNotice) -> str:
    notice = f"notice for {counted(event.leaving, 'worker')} of {event.size}, {duration(event.left_s)} left"
    return f"{notice}, room for {event.room}: training continues until {duration(event.stops_s)} are left"


@text_of.register
def _cuts_step(event: stopping.CutsStep) -> str:
    cut = f"the step in flight is given up after {duration(event.elapsed_s)}"
    if event.to is not None and event.to_step_s is not None:
        whole = f"{counted(event.to, 'worker')} do all of it in {duration(event.to_step_s)}"
        return f"{cut}: its rest would take {duration(event.rest_s)}, and {whole}"
    left = "" if event.left_s is None else f", and {duration(event.left_s)} are left"
    return f"{cut}: its rest would take {duration(event.rest_s)}{left} to save what is done"


@text_of.register
def _replacements_start(event: stopping.ReplacementsStart) -> str:
    newcomers = counted(event.newcomers, "newcomer")
    return f"{counted(event.to, 'worker')} will continue: meanwhile planner starts {newcomers}"


@text_of.register
def _becomes_durable(event: stopping.BecomesDurable) -> str:
    return f"the last step becomes durable, and does not stay in memory: {_obstacle(event.obstacle)}"


@text_of.register
def _awaits_commit(event: stopping.AwaitsCommit) -> str:
    wait = f"wait for a commit: the group stops when a step since {event.since_step} is durable"
    return f"{wait}, so that its last step can stay in memory"


@text_of.register
def _awaits_first_step(event: stopping.AwaitsFirstStep) -> str:
    larger = f"{counted(event.to, 'worker')} continue when the first step is done"
    return f"{larger} (they wait at most {duration(event.most_s)})"


@text_of.register
def _newcomers_called_off(event: stopping.NewcomersCalledOff) -> str:
    return f"newcomers were called off: {text_of(event.reason)}"


@text_of.register
def _room_shrank(event: stopping.RoomShrank) -> str:
    return f"there is room for only {counted(event.room, 'worker')} now"


@text_of.register
def _notice_withdrawn(_event: stopping.NoticeWithdrawn) -> str:
    return "the nodes with notice stay"


@text_of.register
def _newcomers_late(event: stopping.NewcomersLate) -> str:
    return f"they were not ready after {duration(event.after_s)}"


@text_of.register
def _newcomer_failed(_event: stopping.NewcomerFailed) -> str:
    return "one failed while it started"


@text_of.register
def _driver_stops(_event: stopping.DriverStops) -> str:
    return "the driver stops the run"


@text_of.register
def _ends_with_loss(event: stopping.EndsWithLoss) -> str:
    durable = f", and step {event.durable_step} is durable" if event.durable_step else ""
    if event.is_sure:
        return f"the run ends: step {event.step} is only in memory, and is lost{durable}"
    return f"the run ends: steps up to {event.step} may be only in memory, and are lost{durable}"


@text_of.register
def _held_step_lost(event: stopping.HeldStepLost) -> str:
    resumed = f"training resumed from step {event.resumed_step}"
    return f"step {event.step} was only in memory and is lost: {resumed}"


@text_of.register
def _first_step_given_up(event: stopping.FirstStepGivenUp) -> str:
    return f"the first step was not done after {duration(event.after_s)}: it starts again with more workers"


@text_of.register
def _not_parked(event: stopping.NotParked) -> str:
    missing = f"{counted(event.workers, 'worker')} had not parked after {duration(event.after_s)}"
    return f"{missing}: the steps since {newest(from_memory=event.from_memory)} are done again"


@text_of.register
def _waits_for_floor(event: stopping.WaitsForFloor) -> str:
    label = f"{MARKET_LABEL}={ON_DEMAND}"
    room = f"nodes with the label {label} have room for {event.room}, but workers.min is {event.least}"
    others = f" (others have room for {event.other_room})" if event.other_room else ""
    return f"waiting: {room}{others}{'' if event.has_labels else f'. {_HOW_TO_LABEL}'}"


@text_of.register
def _floor_missing(event: stopping.FloorMissing) -> str:
    found = f"{event.on_demand} of the workers {'is' if event.on_demand == 1 else 'are'} on on-demand nodes"
    return f"{found}, and workers.min is {event.least}: training goes on. The next group takes such places first"


@text_of.register
def _waits_for_room(event: stopping.WaitsForRoom) -> str:
    return f"waiting: room for {event.room}, but workers.min is {event.least}"
