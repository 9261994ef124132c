"""What people read about decisions of the elastic controller, word for word."""

from dataclasses import fields

import pytest
from message import Message

from planner.events import capacity, failures, outlook, sizing, stopping
from planner.events.event import Event
from planner.events.kinds import KINDS
from planner.wording.event_text import text_of, text_of_all


def move(size, to, samples=12, to_samples=6, step_s=1.0, to_step_s=0.5, *, on_one_machine=False):
    return sizing.Move(
        size=size,
        to=to,
        samples=samples,
        to_samples=to_samples,
        step_s=step_s,
        to_step_s=to_step_s,
        on_one_machine=on_one_machine,
    )


def unmeasured(size, to, samples, to_samples):
    return move(size, to, samples, to_samples, step_s=None, to_step_s=None)


MOVED = "4 -> 8, 0.5 s per step instead of 1 s"
WON_BACK = {"win_back_s": 2.8, "pause_s": 1.4, "remaining_s": 10_000.0}
FAILED = Message(text="it died")

LACKING = "worker 0 on node bbbbbbbb, CPU: out of memory in the backward pass (it asked for 1.1 GB)"
OTHER_WAYS = (
    "To need less memory, set train.precision: bf16 or train.activation_checkpointing: true, train adapters "
    "(model.lora), lower model.context, or use more or larger devices"
)


def lacking(place="backward", **facts):
    known = {"max_micro": 8, "max_tokens": None, "samples": 8, "tokens": None, "longest": None, "asked_bytes": 2**30}
    return failures.OutOfMemory(rank=0, node="b" * 56, device="CPU", place=place, error="no room", **{**known, **facts})


SIZING = [
    (move(4, 8), MOVED),
    (move(4, 8, on_one_machine=True), f"{MOVED} (if nodes had cores of their own)"),
    (unmeasured(2, 1, 24, 48), "2 -> 1, the time of 48 samples per step instead of 24"),
    (sizing.TooLittleRoom(room=2, least=3), "there is room for 2 workers, and the job needs 3"),
    (
        sizing.WorkersLeave(room=13, move=move(15, 11, 3, 3, 1.0, 1.0)),
        "there is room for only 13 of 15 workers (11 are as fast): 1 s per step instead of 1 s",
    ),
    (
        sizing.WorkersLeave(room=1, move=unmeasured(2, 1, 24, 48)),
        "there is room for only 1 of 2 workers: the time of 48 samples per step instead of 24",
    ),
    (
        sizing.Pays(move=move(4, 8), **WON_BACK),
        f"{MOVED}: it takes 2.8 s to win back a pause of 1.4 s, and 2.8 h of training remain",
    ),
    (
        sizing.PaysByPlan(move=unmeasured(4, 8, 12, 6)),
        (
            "4 -> 8, the time of 6 samples per step instead of 12: 2.0 times as fast by the plan (no step was measured "
            "yet)"
        ),
    ),
    (sizing.UsesEveryNode(size=4, to=6), "4 -> 6: this run uses every node"),
    (sizing.UsesAll(size=4), "the run already has all that it may use now, 4 workers"),
    (
        sizing.NotNeeded(size=12, room=15, samples=3),
        "a step takes the time of 3 samples at 15 workers and at 12: nothing to gain",
    ),
    (
        sizing.NotFaster(move=move(2, 3, to_step_s=0.99), least=0.02),
        "more workers would not be faster by 2%: 2 -> 3, 0.99 s per step instead of 1 s",
    ),
    (
        sizing.NotWonBack(move=move(4, 8), **WON_BACK),
        f"it would take 2.8 s to win back a pause of 1.4 s, and 2.8 h of training remain: {MOVED}",
    ),
    (
        sizing.NotMeasured(move=unmeasured(4, 5, 12, 10), least=1.5),
        (
            "no step was measured yet, and less than 1.5 times as fast by the plan: 4 -> 5, the time of 10 samples "
            "per step instead of 12"
        ),
    ),
    (
        sizing.RoomJustChanged(move=unmeasured(4, 8, 12, 6), wait_s=1.4),
        (
            "no step was measured yet, and the room has just changed, so resize in 1.4 s if the room lasts: "
            "4 -> 8, the time of 6 samples per step instead of 12"
        ),
    ),
    (
        sizing.MoreMayCome(move=move(4, 8), wait_s=0.4),
        f"more may come and one resize is cheaper than two, so resize in 0.4 s if the room lasts: {MOVED}",
    ),
    (
        sizing.StaysTooShort(move=move(4, 8), wait_s=10.5, num_short=1, num_times=1, break_even_s=89.3, pauses_s=16.0),
        (
            "room for 8 lasted under 89 s in 1 of the last 1 time, too short to pay for 16 s of pauses, so resize in "
            f"10 s if the room lasts: {MOVED}"
        ),
    ),
    (
        sizing.RestartsTooOften(move=move(4, 8), wait_s=400.0, expected_s=500.0, needed_s=700.0),
        (
            "a loss or a notice is expected within 8 min, and restarts on all nodes anyway. A resize pays after "
            f"12 min, so resize in 7 min if the room lasts: {MOVED}"
        ),
    ),
    (sizing.WorkersMax(most=4), "workers.max is 4"),
    (sizing.GlobalBatchUsedUp(samples=4), "a global batch of 4 samples has work for no more workers"),
    (sizing.NodesLeftOut(nodes=("n2",)), "node n2 is left out"),
    (sizing.NodesLeftOut(nodes=("n2", "n3")), "2 nodes are left out"),
    (
        sizing.OnHold(most=2, left_s=30.0),
        "a start with more than 2 workers failed, and planner tries more in 30 s",
    ),
    (
        sizing.PlacesUnused(size=4, places=6, reasons=(sizing.WorkersMax(most=4),)),
        "4 of 6 places used, because workers.max is 4",
    ),
    (
        sizing.PlacesUnused(size=4, places=8, reasons=(sizing.WorkersMax(most=6), sizing.UsesAll(size=6))),
        ("4 of 8 places used, because workers.max is 6, and the run already has all that it may use now, 6 workers"),
    ),
    (
        sizing.Resizes(to=6, reason=sizing.UsesEveryNode(size=4, to=6)),
        "resize: 4 -> 6: this run uses every node",
    ),
    (
        sizing.Resized(size=2, to=3, cost_s=15.0, steps_again=0),
        "2 -> 3 workers cost 15 s of training",
    ),
    (
        sizing.Resized(size=3, to=2, cost_s=390.0, steps_again=3),
        "3 -> 2 workers cost 6 min of training, with 3 steps done again",
    ),
    (sizing.Waited(waited_s=40.0), "no group could start for 40 s: too little room"),
]

NEEDS = stopping.StopNeeds(stop_s=19.0, lacks=None, held_step=None)
NOT_KNOWN = stopping.StopNeeds(stop_s=4.0, lacks="commit", held_step=None)
NOTICE = "resize: notice for 1 worker of 4, 29 s left, room for 3"


def notice(obstacle):
    return stopping.Notice(leaving=1, size=4, left_s=29.0, room=3, obstacle=obstacle)


STOPPING = [
    (NEEDS, "a step and a commit take 19 s"),
    (
        stopping.StopNeeds(stop_s=24.0, lacks=None, held_step=110),
        "a step, the commit of step 110 and another commit take 24 s",
    ),
    (NOT_KNOWN, "no commit was measured yet"),
    (stopping.StopNeeds(stop_s=15.0, lacks="step", held_step=None), "no step was measured yet"),
    (notice(None), NOTICE),
    (
        stopping.Notice(leaving=2, size=4, left_s=None, room=2, obstacle=None),
        "resize: notice for 2 workers of 4, for ever left, room for 2",
    ),
    *(
        (notice(obstacle), f"{NOTICE}. The last step becomes durable, and does not stay in memory: {text}")
        for obstacle, text in (
            ("driver_ends", "the driver ends the run"),
            ("no_keeper", "a node of the group has no keeper"),
            ("no_other_group", "no other group can start"),
            ("commit_is_quicker", "a commit is quicker than a hand-over in memory"),
            ("notice_too_short", "the notice is too short for a hand-over in memory"),
            ("nothing_durable", "nothing became durable since the group began"),
        )
    ),
    (
        stopping.HandsOver(allowed_s=None),
        "all workers finish their step, then hand it over in memory",
    ),
    (
        stopping.HandsOver(allowed_s=14.0),
        "all workers finish their step, then hand it over in memory (14 s are allowed for that)",
    ),
    (
        stopping.NoticeSuffices(needs=NEEDS),
        "a step and a commit take 19 s: the notice is long enough to keep all steps",
    ),
    (stopping.NoticeSuffices(needs=NOT_KNOWN), "no commit was measured yet"),
    (
        stopping.NoticeTooShort(needs=NEEDS, tries_s=None),
        "a step and a commit take 19 s: the notice is too short to keep all steps",
    ),
    (
        stopping.NoticeTooShort(needs=NEEDS, tries_s=6.3),
        "a step and a commit take 19 s: planner still tries a commit for 6.3 s",
    ),
    (
        stopping.TrainsOn(room=0, needs=NEEDS, left_s=60.0),
        (
            "notice, and only 0 workers will fit: training continues as long as possible (a step and a commit take "
            "19 s, and 60 s are left)"
        ),
    ),
    (
        stopping.TrainsOn(room=1, needs=NOT_KNOWN, left_s=None),
        "notice, and only 1 worker will fit: training continues as long as possible (no commit was measured yet)",
    ),
    (
        stopping.UsesNotice(leaving=1, size=4, room=3, left_s=118.0, stops_s=29.0),
        "notice for 1 worker of 4, 118 s left, room for 3: training continues until 29 s are left",
    ),
    (
        stopping.ReplacementsStart(newcomers=1, to=4),
        "4 workers will continue: meanwhile planner starts 1 newcomer",
    ),
    (
        stopping.CutsStep(elapsed_s=12.0, rest_s=48.0, to=8, to_step_s=15.0, left_s=None),
        "the step in flight is given up after 12 s: its rest would take 48 s, and 8 workers do all of it in 15 s",
    ),
    (
        stopping.CutsStep(elapsed_s=12.0, rest_s=48.0, to=None, to_step_s=None, left_s=30.0),
        ("the step in flight is given up after 12 s: its rest would take 48 s, and 30 s are left to save what is done"),
    ),
    (
        stopping.BecomesDurable(obstacle="no_keeper"),
        "the last step becomes durable, and does not stay in memory: a node of the group has no keeper",
    ),
    (
        stopping.AwaitsCommit(since_step=30),
        (
            "wait for a commit: the group stops when a step since 30 is durable, so that its last step can stay in "
            "memory"
        ),
    ),
    (
        stopping.NewcomersCalledOff(reason=stopping.RoomShrank(room=2)),
        "newcomers were called off: there is room for only 2 workers now",
    ),
    (
        stopping.AwaitsFirstStep(to=8, most_s=30.0),
        "8 workers continue when the first step is done (they wait at most 30 s)",
    ),
    (stopping.NoticeWithdrawn(), "the nodes with notice stay"),
    (stopping.RoomShrank(room=1), "there is room for only 1 worker now"),
    (stopping.NewcomersLate(after_s=60.0), "they were not ready after 60 s"),
    (stopping.NewcomerFailed(), "one failed while it started"),
    (stopping.DriverStops(), "the driver stops the run"),
    (
        stopping.EndsWithLoss(step=7, is_sure=True, durable_step=5),
        "the run ends: step 7 is only in memory, and is lost, and step 5 is durable",
    ),
    (
        stopping.EndsWithLoss(step=7, is_sure=False, durable_step=0),
        "the run ends: steps up to 7 may be only in memory, and are lost",
    ),
    (
        stopping.HeldStepLost(step=7, resumed_step=5),
        "step 7 was only in memory and is lost: training resumed from step 5",
    ),
    (
        stopping.FirstStepGivenUp(after_s=30.0),
        "the first step was not done after 30 s: it starts again with more workers",
    ),
    (
        stopping.NotParked(workers=1, after_s=30.0, from_memory=False),
        "1 worker had not parked after 30 s: the steps since the last commit are done again",
    ),
    (
        stopping.NotParked(workers=2, after_s=30.0, from_memory=True),
        (
            "2 workers had not parked after 30 s: the steps since the newest copy in memory or the last commit are "
            "done again"
        ),
    ),
    (stopping.WaitsForRoom(room=2, least=3), "waiting: room for 2, but workers.min is 3"),
    (
        stopping.WaitsForFloor(room=1, least=2, other_room=3, has_labels=True),
        (
            "waiting: nodes with the label ray.io/market-type=on-demand have room for 1, but workers.min is 2 "
            "(others have room for 3)"
        ),
    ),
    (
        stopping.WaitsForFloor(room=0, least=2, other_room=0, has_labels=False),
        (
            "waiting: nodes with the label ray.io/market-type=on-demand have room for 0, but workers.min is 2. "
            "No node has this label. Set it under labels of the node types in the cluster's file, or with "
            "ray start --labels=ray.io/market-type=on-demand. Or write workers.min_on: any"
        ),
    ),
    (
        stopping.FloorMissing(on_demand=0, least=1),
        (
            "0 of the workers are on on-demand nodes, and workers.min is 1: training goes on. "
            "The next group takes such places first"
        ),
    ),
    (
        stopping.FloorMissing(on_demand=2, least=3),
        (
            "2 of the workers are on on-demand nodes, and workers.min is 3: training goes on. "
            "The next group takes such places first"
        ),
    ),
]

NODE = "bb" * 28
DIED = failures.WorkerDied(rank=1, node=NODE)
CODE = {"rank": 1, "node": NODE, "kind": "NameError"}

LOWER = "Lower batch.max_micro, or set train.activation_checkpointing"

FAILURES = [
    (DIED, "worker 1 on node bbbbbbbb died (killed, or out of memory)"),
    (failures.WorkerDied(rank=1, node=None), "worker 1 on node ? died (killed, or out of memory)"),
    (failures.WorkerFailed(rank=0, node=NODE, error="ValueError: y"), "worker 0 on node bbbbbbbb: ValueError: y"),
    (
        failures.WorkerFailed(
            rank=0,
            node=NODE,
            error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
        ),
        f"worker 0 on node bbbbbbbb: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {LOWER}",
    ),
    (
        failures.WorkerFailed(rank=0, node=NODE, error="torch.AcceleratorError: CUDA error: out of memory"),
        f"worker 0 on node bbbbbbbb: torch.AcceleratorError: CUDA error: out of memory. {LOWER}",
    ),
    (
        failures.UserCodeRaised(**CODE, message="x", place="loop.py:7, in train"),
        "worker 1 on node bbbbbbbb: train() raised NameError: x (loop.py:7, in train)",
    ),
    (
        failures.UserCodeRaised(**CODE, message="", place=""),
        "worker 1 on node bbbbbbbb: train() raised NameError",
    ),
    (failures.StartFailed(error="no place"), "they could not be started: no place"),
    (failures.Hung(silence_s=600.0, limit_s=600.0, deaf=0), "no progress for 10 min (limit 10 min)"),
    (
        failures.Hung(silence_s=61.0, limit_s=60.0, deaf=1),
        "no progress for 61 s (limit 60 s), and 1 worker did not answer",
    ),
    (failures.ParkTimedOut(after_s=60.0), "they had not parked after 60 s"),
    *[
        (lacking(place, asked_bytes=None), f"worker 0 on node bbbbbbbb, CPU: out of memory {where}")
        for place, where in [
            ("forward", "in the forward pass"),
            ("loss", "in the loss"),
            ("backward", "in the backward pass"),
            ("evaluation", "in the evaluation"),
            ("optimizer", "in the optimizer's step"),
            ("start", "before the first step"),
            ("data", "while it read rows"),
            ("reference", "while it computed the reference's log-probabilities"),
            ("saving", "while it saved a step"),
        ]
    ],
    (lacking(), LACKING),
    (
        failures.CapLowered(reason=lacking(), max_micro=4, max_tokens=None),
        f"{LACKING}. On CPU, this run goes on with batch.max_micro: 4 in place of batch.max_micro: 8",
    ),
    (
        failures.CapLowered(reason=lacking(max_tokens=4096), max_micro=4, max_tokens=2048),
        (
            f"{LACKING}. On CPU, this run goes on with batch.max_micro: 4 and batch.max_tokens: 2048 in place of "
            "batch.max_micro: 8 and batch.max_tokens: 4096"
        ),
    ),
    (
        failures.StopsForMemory(reason=lacking(), why="bitwise", max_micro=4, max_tokens=None),
        (
            f"{LACKING}. With batch.equality: bitwise, micro-batches decide the bits. Write batch.max_micro: 4, and "
            "resume with planner run JOB --accept recipe"
        ),
    ),
    (
        failures.StopsForMemory(reason=lacking(), why="bitwise", max_micro=None, max_tokens=None),
        f"{LACKING}. With batch.equality: bitwise, micro-batches decide the bits. {OTHER_WAYS}",
    ),
    (
        failures.StopsForMemory(reason=lacking(), why="one_sample", max_micro=None, max_tokens=None),
        f"{LACKING}, with one sample in a micro-batch. {OTHER_WAYS}",
    ),
    (
        failures.StopsForMemory(reason=lacking(), why="again", max_micro=None, max_tokens=None),
        (
            f"{LACKING}, for the second time there without a new step in between, with batch.max_micro: 8: a lower cap "
            f"does not help. {OTHER_WAYS}"
        ),
    ),
    (failures.WorkersFailed(reason=FAILED), "the workers failed: it died"),
    (
        failures.NodeLeftOut(node="n2", deaths=3),
        "node n2 is left out: its workers died 3 times within the hour",
    ),
    (
        failures.NodesLost(nodes=1, told=0, from_memory=True),
        "1 node lost: training resumes from the newest copy in memory or the last commit",
    ),
    (
        failures.NodesLost(nodes=15, told=0, from_memory=False),
        "15 nodes lost: training resumes from the last commit",
    ),
    (failures.NodesLost(nodes=7, told=1, from_memory=False), "6 more nodes lost, 7 in all"),
    (failures.MemoryLost(reason=FAILED), "it died. The next group looks for what is left"),
    (
        failures.GivesUp(reason=FAILED, why="mistake_at_start", failures=1),
        "it died. planner does not try again: the code failed before the first step",
    ),
    (
        failures.GivesUp(reason=FAILED, why="same_mistake", failures=1),
        (
            "it died. planner does not try again: the code failed twice in a row at this line, without a new step in "
            "between"
        ),
    ),
    (
        failures.GivesUp(reason=FAILED, why="no_progress", failures=6),
        "the workers failed 6 times in a row without progress: it died",
    ),
    (
        failures.GivesUp(reason=FAILED, why="too_often", failures=20),
        "the workers failed 20 times within the hour: it died",
    ),
    (
        failures.Whereabouts(
            places=(
                failures.Place(rank=1, node=NODE, others=0, location=None),
                failures.Place(rank=0, node=NODE, others=2, location="step (loop.py:7)"),
            )
        ),
        (
            "where they were: worker 1 on node bbbbbbbb: does not answer; "
            "worker 0 on node bbbbbbbb and 2 more: step (loop.py:7)"
        ),
    ),
    (failures.Unplaced(placed=2, asked=3), "only 2 of 3 workers got a place"),
    (
        failures.Held(reason=failures.Unplaced(placed=2, asked=3), most=2, hold_s=30.0),
        "only 2 of 3 workers got a place, so planner uses no more than 2 workers for 30 s",
    ),
    (
        failures.AutoscalerRejects(workers=8, now_asked=4),
        "the autoscaler rejected 8 workers: asking for 4",
    ),
    (
        failures.NoNodes(workers=4, node_type="gpu", reason="no quota"),
        "asked for 4 workers, but the cloud gives no gpu node: no quota",
    ),
    (
        failures.NoNodes(workers=1, node_type="gpu", reason=""),
        "asked for 1 worker, but the cloud gives no gpu node",
    ),
    (failures.ControllerDied(), "the controller of the workers has died (killed, or out of memory)"),
    (
        failures.ControllerSilent(silent_s=305.0, has_started=True),
        "the controller of the workers has not answered for 5 min",
    ),
    (
        failures.ControllerReplaced(reason=failures.ControllerSilent(silent_s=1805.0, has_started=False)),
        "the controller of the workers has not started after 30 min: planner starts another one",
    ),
]


def takes(left_s, commit_s=10.0, passed_s=0.0):
    return outlook.StopTime(commit_s=commit_s, left_s=left_s, passed_s=passed_s)


def runs(**facts):
    usual = {"leaving": 1, "size": 3, "left_s": 30.0, "stops_in_s": 1.0, "room": 2, "to": 2, "in_memory": False}
    return outlook.NoticeRuns(**{**usual, "needs": NEEDS, **facts})


def durable(time, step=120, *, is_end=False, after_step=None, is_evaluated=False):
    return outlook.AwaitsDurable(time=time, step=step, is_end=is_end, after_step=after_step, is_evaluated=is_evaluated)


STOP = "all workers finish their step, then it becomes durable"
LAST = "step 120 is done: waiting until step 120 is durable"
TOOK = "(the last commit took 10 s)"

OUTLOOK = [
    (outlook.Starts(size=2, how="new"), "starting 2 workers"),
    (outlook.Starts(size=1, how="after_stop"), "continuing with 1 worker"),
    (outlook.Starts(size=2, how="loading"), "2 workers started, loading"),
    (
        outlook.WillStop(in_memory=False, most=3),
        "all workers stop at the same step and commit, then up to 3 workers continue",
    ),
    (
        outlook.WillStop(in_memory=True, most=3),
        "all workers stop at the same step and hand it over in memory, then up to 3 workers continue",
    ),
    (outlook.WillStart(size=2, planned=True), "2 workers continue"),
    (outlook.WillStart(size=2, planned=False), "2 workers start"),
    (outlook.RunEnds(), "the run ends"),
    (
        outlook.HoldLasts(most=2, left_s=30.0),
        "on hold: no more than 2 workers for 30 s, because a start with more failed",
    ),
    (outlook.FirstStepPending(), "the first step is not done yet"),
    (outlook.OldGroupEnds(), "the next group starts when the workers of the last one have ended"),
    (
        outlook.NoResize(reason=sizing.UsesAll(size=3)),
        "no resize: the run already has all that it may use now, 3 workers",
    ),
    (
        outlook.Silence(silence_s=20.0, limit_s=600.0),
        "no progress for 20 s: planner ends the group after 10 min",
    ),
    (
        runs(),
        "notice for 1 worker of 3, 30 s left: all stop in 1 s and commit, then 2 workers continue",
    ),
    (
        runs(left_s=None, stops_in_s=None, in_memory=True),
        "notice for 1 worker of 3, no deadline: all stop later and hand over in memory, then 2 workers continue",
    ),
    (
        runs(to=None),
        (
            "notice for 1 worker of 3, 30 s left, and only 2 workers will fit: training continues, and stops in 1 s "
            "(a step and a commit take 19 s)"
        ),
    ),
    (
        outlook.AwaitsNewcomers(size=2, to=3, so_far_s=0.0, most_s=60.0),
        "2 -> 3 workers as soon as 1 newcomer can train (0 s so far, at most 60 s)",
    ),
    (
        outlook.AwaitsParked(
            parked=0, size=3, in_memory=False, left_s=None, then=(outlook.WillStart(size=2, planned=True),)
        ),
        "0 of 3 workers have committed and parked. Then: 2 workers continue",
    ),
    (
        outlook.AwaitsParked(
            parked=1, size=3, in_memory=True, left_s=5.0, then=(stopping.WaitsForRoom(room=2, least=3),)
        ),
        (
            "1 of 3 workers have copied their step into memory and parked (planner waits 5 s more). Then: waiting: "
            "room for 2, but workers.min is 3"
        ),
    ),
    (
        outlook.StopsInMemory(done_step=None, copy_s=0.5),
        "all workers finish their step, then hand it over in memory (the last copy took 0.5 s)",
    ),
    (
        outlook.StopsMidStep(in_memory=True),
        "all workers give up their step, then hand the one before over in memory",
    ),
    (
        outlook.StopsMidStep(in_memory=False),
        "all workers give up their step, then make the one before durable",
    ),
    (
        outlook.StopsInMemory(done_step=20, copy_s=None),
        "step 20 is done: waiting until it is copied into memory",
    ),
    *(
        (outlook.StopsDurably(time=time, done_step=120, held_step=None), f"{STOP}{text}")
        for time, text in (
            (takes(12.0), f": about 12 s {TOOK}"),
            (takes(None, commit_s=None), " (no commit was measured yet, so the time is not known)"),
            (takes(None), " (the last commit took 10 s, and no step was measured yet)"),
            (takes(0.01, commit_s=0.01), ": less than 0.1 s (the last commit took 0.01 s)"),
        )
    ),
    (
        outlook.StopsDurably(time=takes(20.0), done_step=120, held_step=110),
        f"{STOP}: about 20 s {TOOK}. When step 120 was done, step 110 was still being written",
    ),
    (durable(takes(10.0)), f"{LAST}: about 10 s {TOOK}"),
    (durable(takes(-4.0, passed_s=14.0)), f"{LAST}: longer than usual, 14 s so far {TOOK}"),
    (durable(takes(15.0), after_step=110), f"{LAST} after step 110: about 15 s {TOOK}"),
    (
        durable(takes(10.0), step=160, is_end=True, is_evaluated=True),
        f"all 160 steps are done: waiting until step 160 is durable, and then evaluated: about 10 s {TOOK}",
    ),
    (outlook.LastStepDurable(step=120), "step 120 is done and durable"),
    (
        outlook.StopsWithoutGroup(unsaved_step=0),
        "no worker trains now, and there is nothing to commit",
    ),
    (
        outlook.StopsWithoutGroup(unsaved_step=99),
        ("no worker trains now, and step 99 may be in memory alone: if there is room, a group starts and commits it"),
    ),
]

LEAVES = capacity.Leaving(node="aaaaaaaaaa", left_s=30.0)
CAPACITY = [
    (LEAVES, "node aaaaaaaaaa has notice, 30 s left"),
    (capacity.Leaving(node="aaaaaaaaaa", left_s=None), "node aaaaaaaaaa has notice without a deadline"),
    (
        capacity.Capacity(time_s=9.0, nodes=("b", "c"), places=4, leaving=()),
        "the cluster has room for 4 workers on 2 nodes",
    ),
    (
        capacity.Capacity(time_s=9.0, nodes=("b",), places=1, leaving=(LEAVES,)),
        "the cluster has room for 1 worker on 1 node, 1 more node with notice",
    ),
]

ALL = [*SIZING, *STOPPING, *FAILURES, *OUTLOOK, *CAPACITY]


@pytest.mark.parametrize(("event", "text"), ALL, ids=[f"{event.name}-{at}" for at, (event, _) in enumerate(ALL)])
def test_an_event_has_its_sentence(event, text):
    """With its facts."""
    assert text_of(event) == text


def inner(event):
    """The event, and those in its facts."""
    values = [getattr(event, field.name) for field in fields(event)]
    nested = [each for value in values for each in (value if isinstance(value, tuple) else [value])]
    return [event, *(found for each in nested if isinstance(each, Event) for found in inner(each))]


def test_no_sentence_of_the_controller_is_missing_here():
    """Each kind stands in the table, by itself or within another one."""
    modules = {module.__name__ for module in (sizing, stopping, failures, outlook)}
    kinds = {kind for kind in KINDS.values() if kind.__module__ in modules}
    assert kinds <= {type(found) for event, _ in ALL for found in inner(event)}


def test_several_events_are_one_text_and_none_is_said_twice():
    """As the terminal shows them."""
    assert text_of_all([outlook.RunEnds(), FAILED, outlook.RunEnds()]) == "the run ends; it died"
    assert text_of_all([]) == ""
