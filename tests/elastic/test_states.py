"""The elastic controller as a state machine, walked through random views: what no order of events may bring about."""

import math
from dataclasses import fields, replace

from fixed_examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from message import Message
from test_states_table import TABLE

from planner.elastic.controller import ElasticController
from planner.elastic.mistakes import GaveUp
from planner.elastic.resize_choice import first_step_due_s
from planner.elastic.states import Ending, Idle, Rules, Running, State, Stopping, Waiting, Warming
from planner.elastic.step import step
from planner.elastic.view import Act, View
from planner.events.failures import OutOfMemory
from planner.plan import BatchSizes, WorkerRange, make_plan
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import least_caps

NODES = [f"n{i}" for i in range(8)]
LOOK_S = 0.5
REACHED: set[type] = set()
ACTS: set[tuple[str, str]] = set()
IN_MEMORY: set[bool] = set()
MOVES: set[tuple[str, str]] = set()
# Longer than any wait that the controller may make while there is room: a hold of half an hour, newcomers of an hour.
PATIENCE_S = 2 * 3600.0


def out_of_memory(place, node, max_micro):
    """Of a worker whose largest micro-batch is the cap."""
    unknown = dict.fromkeys(["max_tokens", "tokens", "longest", "asked_bytes"])
    return OutOfMemory(
        rank=0, node=node, device="CPU", place=place, max_micro=max_micro, samples=max_micro, error="x", **unknown
    )


class Walk(RuleBasedStateMachine):
    """Events in any order; after each look the caller does what the controller asked for, as the policy does."""

    @initialize(
        global_batch=st.sampled_from([24, 7, 1]),
        least=st.integers(1, 3),
        more=st.sampled_from([6, 3, 0]),
        eager=st.booleans(),
        grow_s=st.sampled_from([0.0, 1.4, 60.0]),
        can_hold=st.booleans(),
    )
    def launch(self, global_batch, least, more, eager, grow_s, can_hold):
        least = min(least, global_batch)
        self.now, self.sizes = 1000.0, BatchSizes(global_batch=global_batch, max_micro=4)
        self.workers = WorkerRange(least=least, most=min(least + more, global_batch))
        self.controller = ElasticController(
            Rules(sizes=self.sizes, workers=self.workers, has_eval=False, eager=eager),
            cost=ResizeCost(grow_s=grow_s, shrink_s=grow_s),
            clock=lambda: self.now,
        )
        self.eager, self.is_over, self.is_ending = eager, False, False
        self.room, self.draining = dict.fromkeys(NODES[:3], 1), {}
        self.group, self.parked, self.silent = (), set(), set()
        self.newcomers, self.progress, self.stop_asked = "none", 0, False
        self.step, self.num_steps = 0, 0  # of the launch, and of the group that runs
        self.can_hold, self.in_memory, self.is_held = can_hold, False, False
        self.held_step = 0  # that is only in memory
        self.durable_step = 0  # as the group that runs has reported
        self.may_be_held = False  # a group failed, and copies of its steps may be whole
        self.given, self.told = [], []

    # -- what happens around the controller

    @rule(node=st.sampled_from(NODES), count=st.integers(0, 2))
    def room_changes(self, node, count):
        self.draining.pop(node, None)
        if node not in self.group:
            self.room[node] = count

    @rule(seconds=st.sampled_from([100.0, 0.5]))
    def nodes_come(self, seconds):
        """As many as there may be; later, when the room has settled, they may be worth a resize."""
        self.draining, self.room = {}, dict.fromkeys(NODES, 1)
        self.look_once()
        self.now += seconds
        self.look_once()

    @rule(node=st.sampled_from(NODES), in_s=st.sampled_from([0.0, 5.0, 30.0, 7200.0, math.inf]))
    def notice(self, node, in_s):
        if self.room.pop(node, 0):
            self.draining[node] = in_s

    @rule(can_hold=st.booleans())
    def keepers_come_and_go(self, can_hold):
        self.can_hold = can_hold

    @precondition(lambda self: self.group)
    @rule(in_s=st.sampled_from([0.0, 30.0]), spared=st.integers(0, 2))
    def notice_to_the_group(self, in_s, spared):
        for node in self.group[spared:]:
            self.room.pop(node, 0)
            self.draining[node] = in_s
        self.look_once()

    @precondition(lambda self: self.group)
    @rule()
    def all_is_taken_back(self):
        """And all workers commit in time, if they are told to stop."""
        self.room, self.draining = {}, dict.fromkeys(self.group, 3.0)
        self.look_once()
        if self.stop_asked:
            self.parked = set(range(len(self.group)))
            self.look_once()

    @rule(seconds=st.sampled_from([2.0, 20.0, 120.0, 4000.0]), looks=st.integers(1, 3))
    def time_passes(self, seconds, looks):
        for _ in range(looks):
            self.now += seconds
            self.draining = {node: max(in_s - seconds, 0.0) for node, in_s in self.draining.items()}
            self.look_once()

    @precondition(lambda self: self.group and not self.parked)
    @rule(
        seconds=st.sampled_from([0.1, 1.0, 30.0]),
        commit_s=st.sampled_from([0.0, 0.5, 40.0]),
        in_flight=st.sampled_from([0, 1, 5]),
    )
    def a_step_is_done(self, seconds, commit_s, in_flight):
        self.now += seconds
        self.step, self.num_steps, self.progress = self.step + 1, self.num_steps + 1, self.progress + 1
        durable = max(self.step - in_flight, 0)
        self.held_step = self.held_step if durable < self.held_step else 0
        self.durable_step, self.may_be_held = durable, False
        self.controller.reported(
            {
                "step": self.step - 1,
                "total_steps": 100_000,
                "world_size": len(self.group),
                "seconds": seconds,
                "held_step": self.step,
                "step_cost": 8,
                "num_again": 0,
                "copied_step": 0,
                "durable_step": durable,
                "is_last": False,
                "commit_s": commit_s,
                "eval_s": 0.0,
            }
        )
        self.look_once()

    @precondition(lambda self: self.stop_asked)
    @rule(count=st.sampled_from([8, 2, 1]), is_held=st.booleans())
    def workers_park(self, count, is_held):
        """In memory, if they were asked so, or durably."""
        if not self.parked:
            # A group that did no step has the one it began with. If that is durable, there is nothing to hold.
            newest = max(self.step, self.held_step) if self.num_steps or self.may_be_held else self.held_step
            self.is_held = is_held and self.in_memory and newest > self.durable_step
            self.controller.committed(1.0, 1.0, is_held=self.is_held)
            self.held_step = newest if self.is_held else 0
            self.may_be_held = False
        self.parked |= set(range(min(count, len(self.group))))
        self.look_once()

    @precondition(lambda self: self.group)
    @rule(ranks=st.sets(st.integers(0, 7)))
    def workers_fall_silent(self, ranks):
        self.silent = {rank for rank in ranks if rank < len(self.group)}

    @precondition(lambda self: self.newcomers == "warming")
    @rule(become=st.sampled_from(["ready", "failed"]))
    def newcomers_change(self, become):
        self.newcomers = become
        self.look_once()

    @precondition(lambda self: self.group)
    @rule(is_lost=st.booleans(), rank=st.integers(0, 7))
    def the_group_fails(self, is_lost, rank):
        node = frozenset({self.group[rank % len(self.group)]})
        did_steps = self.num_steps > 0 and self.step > self.durable_step
        self.may_be_held |= did_steps and self.controller.state.group.can_hold
        self.forget_group()
        try:
            self.controller.failed(node if is_lost else frozenset(), frozenset() if is_lost else node, "it died")
        except GaveUp:
            self.is_over = True

    @precondition(lambda self: self.group)
    @rule(place=st.sampled_from(["forward", "optimizer", "start"]), rank=st.integers(0, 7))
    def a_worker_runs_out_of_memory(self, place, rank):
        """With the caps that its group was told. They never rise."""
        node, caps = self.group[rank % len(self.group)], self.controller.caps
        failure = out_of_memory(place, node, least_caps(caps.of, caps.lowered).max_micro)
        did_steps = self.num_steps > 0 and self.step > self.durable_step
        self.may_be_held |= did_steps and self.controller.state.group.can_hold
        self.forget_group()
        try:
            self.controller.failed(frozenset(), frozenset({node}), failure, None, (failure,))
        except GaveUp:
            self.is_over = True
        found = self.controller.caps
        assert found.lowered[: len(caps.lowered)] == caps.lowered
        assert least_caps(found.of, found.lowered).is_within(least_caps(caps.of, caps.lowered))

    @precondition(lambda self: self.group)
    @rule()
    def the_group_is_gone(self):
        """Without a failure that anybody told of."""
        self.forget_group()
        self.look_once()

    def teardown(self):
        """The driver ends it: within some looks it may, if workers park when they are told to stop."""
        if not hasattr(self, "controller"):
            return
        self.is_ending = True
        for _ in range(8):
            self.progress += 1
            act = self.look_once()
            if self.is_over or act.kind == "end":
                return
            if self.stop_asked and not self.parked:
                self.controller.committed(1.0, 1.0)
                self.held_step, self.may_be_held = 0, False
            if self.stop_asked:
                self.parked = set(range(len(self.group)))
        raise AssertionError("the driver is not told that it may end the run")

    @rule(text=st.sampled_from(["one", "two"]))
    def somebody_has_something_to_tell(self, text):
        self.controller.note(Message(text=text))
        self.given.append(text)

    # -- looks

    def view(self):
        return View(
            room=dict(self.room),
            draining=dict(self.draining),
            nodes=self.group,
            parked=frozenset(self.parked),
            silent=frozenset(self.silent),
            newcomers=self.newcomers,
            progress=self.progress,
            can_hold=self.can_hold,
            is_ending=self.is_ending,
        )

    @rule()
    def look(self):
        self.look_once()

    def look_once(self) -> Act:
        """A look; and what it asks for is held against what may be asked, and done."""
        if self.is_over:
            return Act()
        self.now += LOOK_S
        view, before = self.view(), self.controller.state
        try:
            act = self.controller.step(view)
        except GaveUp:
            self.is_over = True
            return Act()
        self.told += [event.text for event in act.events if isinstance(event, Message)]
        self.check_pure(before, view, act)
        self.check(before, view, act)
        self.do(act, view)
        REACHED.add(type(self.controller.state))
        ACTS.add((type(before).__name__, act.kind))
        MOVES.add((type(before).__name__, type(self.controller.state).__name__))
        return act

    def check_pure(self, before: State, view: View, act: Act):
        assert step(before, view, self.now) == (self.controller.state, act)

    def check(self, before: State, view: View, act: Act):
        if act.kind in {"warm", "abandon_newcomers", "stop"}:
            assert view.nodes, "it acts on a group that does not run"
            assert isinstance(before, Running | Warming) or act.kind == "stop"
        self.check_memory(before, view, act)
        if act.planned:
            assert view.nodes
            assert view.all_parked
        if act.kind == "abandon_newcomers":
            assert self.newcomers != "none"
        if act.kind == "warm":
            assert self.newcomers == "none"
            assert act.world_size >= 1
        waits = view.can_hold and isinstance(before, Warming) and before.group.num_steps and not before.group.is_fresh
        waits = waits or (isinstance(before, Warming) and self.awaits_first_step)
        if isinstance(before, Warming) and view.newcomers == "ready" and not view.leaving and not waits:
            assert act.kind != "nothing", "newcomers that are ready are kept waiting"
        if isinstance(before, Stopping | Waiting) and view.nodes and view.all_parked and not view.leaving:
            assert act.kind in {"resize", "end"}, "parked workers wait although their places are there"
        if self.is_ending:
            kinds = {"nothing", "stop", "end", *(["resize"] if self.held_step or self.may_be_held else [])}
            assert act.kind in kinds, "nothing is started any more, but to make a step durable"
        if act.kind in {"resize", "warm"}:
            self.check_size(view, act)

    @property
    def awaits_first_step(self):
        """Whether newcomers may let the group do its first step before it stops."""
        state = self.controller.state
        return isinstance(state, Warming) and not state.group.num_steps and self.now < first_step_due_s(state)

    def check_memory(self, before: State, view: View, act: Act):
        """A stop in memory needs keepers, and no step is left in memory at the end."""
        if act.kind == "stop":
            assert not self.stop_asked or (self.in_memory and not act.in_memory), "workers are asked once in each way"
        if act.in_memory:
            assert act.kind == "stop"
            assert self.can_hold
            assert not self.is_ending
        if act.kind == "end":
            room = before.known.room(view, self.now)
            assert not self.held_step or room < self.workers.least, "a step is left in memory"

    def check_size(self, view: View, act: Act):
        """Never more than there is room for or than helps, never fewer than the job's least."""
        size = act.world_size + (len(view.nodes) if act.kind == "warm" else 0)
        assert self.workers.least <= size <= self.workers.most
        room = sum(view.room.values())
        if act.kind == "warm" or (not view.nodes and act.kind == "resize"):
            assert size <= max(room, len(view.nodes))
        if not self.eager and size > self.workers.least:
            fewer = make_plan(self.sizes, size - 1).step_cost
            assert make_plan(self.sizes, size).step_cost < fewer, "one worker fewer would be as fast"

    def do(self, act: Act, view: View):
        if act.kind == "warm":
            self.newcomers = "warming"
        elif act.kind == "abandon_newcomers":
            self.newcomers = "none"
        elif act.kind == "stop":
            self.stop_asked, self.in_memory = True, act.in_memory
            IN_MEMORY.add(act.in_memory)
        elif act.kind == "resize":
            self.start(act.world_size, view)

    def start(self, asked: int, view: View):
        places = [node for node, count in view.room.items() for _ in range(count)]
        self.forget_group()
        if len(places) < asked:
            self.controller.unplaced(len(places), asked)
            return
        self.group, self.num_steps = tuple(places[:asked]), 0
        self.controller.started(self.group)

    def forget_group(self):
        self.group, self.parked, self.silent = (), set(), set()
        self.newcomers, self.stop_asked = "none", False
        self.in_memory = self.is_held = False

    # -- what always holds

    @invariant()
    def no_field_of_a_state_is_none(self):
        """No `None` stands for a state."""
        if hasattr(self, "controller"):
            state = self.controller.state
            assert isinstance(state, Idle | Running | Warming | Stopping | Waiting | Ending)
            assert all(getattr(state, field.name) is not None for field in fields(state))

    @invariant()
    def every_text_is_told_once_and_in_order(self):
        """Those that wait are still there."""
        if hasattr(self, "controller"):
            waiting = [event.text for event in self.controller.events if isinstance(event, Message)]
            assert [*self.told, *waiting] == self.given

    @precondition(lambda self: not self.is_over)
    @rule()
    def it_does_not_wait_for_ever(self):
        """Room for the least count, workers that park and newcomers that come up: soon a group trains."""
        self.room = dict.fromkeys(NODES, 2)
        self.draining = {}
        end_s = self.now + PATIENCE_S
        while self.now < end_s and not self.is_over:
            self.now += 30.0
            self.progress, self.silent = self.progress + 1, set()
            if self.stop_asked:
                self.parked = set(range(len(self.group)))
            if self.newcomers == "warming":
                self.newcomers = "ready"
            act = self.look_once()
            if act.kind == "end":
                return
            if self.group and not self.stop_asked and not self.is_ending:
                assert isinstance(self.controller.state, Running | Warming)
                return
        assert self.is_over


def test_the_walk_reaches_every_state():
    """Else what it finds to be true says little."""
    REACHED.clear()
    run_state_machine_as_test(Walk, settings=settings(examples(200), stateful_step_count=40))
    assert {Idle, Running, Warming, Stopping, Waiting, Ending} == REACHED
    assert {True, False} == IN_MEMORY
    # What a walk has done is in the document; a step and what the caller does of it may pass through `Idle`.
    assert {(state, act) for state, (acts, _) in TABLE.items() for act in acts} >= ACTS
    following = {(state, end) for state, (_, ends) in TABLE.items() for end in {state, *ends}}
    restarted = {(state, "Running") for state, end in following if end == "Idle"}
    assert following | restarted >= MOVES


def test_a_step_changes_neither_its_state_nor_its_view():
    """Equal arguments give equal answers, in any order of calls."""
    rules = Rules(sizes=BatchSizes(global_batch=8, max_micro=4), workers=WorkerRange(least=1, most=4), has_eval=False)
    controller = ElasticController(rules, cost=ResizeCost(grow_s=1.0, shrink_s=1.0), clock=lambda: 0.0)
    view = View(room={"a": 2}, draining={})
    first = step(controller.state, view, 5.0)
    assert step(controller.state, replace(view, room={"a": 3}), 6.0) != first
    assert step(controller.state, view, 5.0) == first
