"""The elastic controller decides when to start, resize or stop a worker group.

It does not know Ray: its caller observes and acts (`planner.dispatch.ray_internal.policy`). The pure function
`planner.elastic.step` decides from a state, a view and the time. This class keeps the state between two views and
records events.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.elastic.floor import floor_missing
from planner.elastic.group import Group, start_limit_s
from planner.elastic.history import NO_COMMIT, History, LastCommit
from planner.elastic.losses import NodeLosses
from planner.elastic.memory import MemoryState
from planner.elastic.mistakes import Mistake
from planner.elastic.next_decision import NextDecision, next_decision
from planner.elastic.pause import NotAResize, PlannedPause, price
from planner.elastic.states import ControllerContext, Ending, Idle, Rules, Running, State, Stopping, Waiting, WithGroup
from planner.elastic.step import after_own_failure, forced_pause, step
from planner.elastic.stopping import durable_stop, held_stop, last_step
from planner.elastic.view import Act, View
from planner.events.event import Event
from planner.events.failures import MemoryLost, OutOfMemory, Unplaced
from planner.events.outlook import StopsMidStep, StopsWithoutGroup
from planner.events.sizing import Resized
from planner.events.stopping import HeldStepLost
from planner.plan import first_collectives_s
from planner.plan.growth import ResizeCost
from planner.plan.lowered_caps import LoweredCaps


class ElasticController:
    """Holds the state of one launch, in the process that controls the workers."""

    def __init__(
        self,
        rules: Rules,
        *,
        cost: ResizeCost,
        clock: Callable[[], float],
        commit: LastCommit = NO_COMMIT,
        earlier_sample_s: float = 0.0,
        caps: LoweredCaps | None = None,
        has_begun: bool = False,
    ) -> None:
        """Begin a launch.

        Args:
            rules: what the job and the launch fix.
            cost: expected cost of a resize, used until this launch has measured one.
            clock: seconds, never going back.
            commit: the last commit of earlier launches, used until this launch has made one.
            earlier_sample_s: seconds per sample of a step's cost in earlier launches, used until this launch has done
                a step. 0 if not known.
            caps: what earlier launches have lowered. Of another job's caps, nothing is taken.
            has_begun: whether another controller of this launch may have started a group.
        """
        history = History(sizes=rules.sizes, default_cost=cost, commit=commit, earlier_sample_s=earlier_sample_s)
        self._clock = clock
        self._losses = NodeLosses()
        self._on_demand: frozenset[str] = frozenset()
        memory = MemoryState.of(rules.sizes)
        if caps is not None:
            memory = replace(memory, caps=caps.for_job(memory.caps.of))
        known = ControllerContext(rules=rules, history=history, memory=memory, has_begun=has_begun)
        self.state: State = Idle(known=known)

    # -- decisions

    def step(self, view: View) -> Act:
        """Advance the state with what is seen now, and return what to do.

        Raises:
            GaveUp: the group hangs, and there were too many failures that no lost node explains.
        """
        now_s = self._clock()
        self._losses, self._on_demand = self._losses.seen(view, now_s), view.on_demand
        news = self._tell_losses(now_s)
        self.state, act = step(self.state, view, now_s)
        # A group that runs writes the event. Without one, the driver's terminal shows it.
        return replace(act, events=(*news, *act.events)) if news and not view.nodes else act

    def next_decision(self, view: View) -> NextDecision:
        """What `step` decides next, and what that waits for. Call it with the view of the last `step`."""
        return next_decision(self.state, view, self._clock())

    @property
    def history(self) -> History:
        """Speeds, costs and failures that this launch has measured so far."""
        return self.state.known.history

    @property
    def caps(self) -> LoweredCaps:
        """The caps on micro-batches that this run has lowered. Each group takes those of its devices."""
        return self.state.known.memory.caps

    @property
    def events(self) -> tuple[Event, ...]:
        """Events not yet in a ledger, oldest first. The next group that runs writes them."""
        return self.state.known.events

    @property
    def held_step(self) -> int:
        """The newest step that is in memory or durable, as far as the controller knows. 0 if it knows of none."""
        unsaved_step = self.state.known.unsaved_step
        if isinstance(self.state, Idle | Ending):
            return unsaved_step
        group = self.state.group
        return max(group.held_step, group.copied_step, group.num_done if group.is_held else unsaved_step)

    @property
    def durable_step(self) -> int:
        """Step of the newest durable commit, likewise."""
        return 0 if isinstance(self.state, Idle | Ending) else self.state.group.durable_step

    @property
    def stop(self) -> Event | None:
        """What a stop of the group waits for from now on, and how long that usually takes. None if no group runs."""
        if isinstance(self.state, Idle | Ending):
            return None
        if isinstance(self.state, Stopping) and self.state.cut:
            return StopsMidStep(in_memory=self.state.in_memory)
        if isinstance(self.state, Stopping) and self.state.in_memory:
            return held_stop(self.state.known, self.state.group)
        return self.driver_stop

    @property
    def driver_stop(self) -> Event:
        """What a stop of the driver waits for, which is always durable."""
        if isinstance(self.state, Idle | Ending):
            return StopsWithoutGroup(unsaved_step=self.state.known.unsaved_step)
        if isinstance(self.state, Waiting):
            return StopsWithoutGroup(unsaved_step=self.state.group.num_done if self.state.group.is_held else 0)
        return durable_stop(self.state.known, self.state.group, self._clock())

    @property
    def last_step(self) -> Event | None:
        """What the group waits for after its last step. None if there is more to train, or nothing to wait for."""
        if isinstance(self.state, Idle | Ending) or not self.state.group.is_last:
            return None
        if isinstance(self.state, Stopping) and self.state.in_memory:
            return held_stop(self.state.known, self.state.group)
        return last_step(self.state.known, self.state.group, self._clock())

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again. No worker should be placed there."""
        return self.history.bad_nodes(self._clock())

    def first_collectives_s(self, world_size: int) -> float:
        """Seconds that collectives of the next group may wait, which has `world_size` workers, until it has measured.

        Longer than the controller waits for its first step.
        """
        return first_collectives_s(start_limit_s(world_size, self.history))

    @property
    def floor(self) -> int:
        """How many workers need a place on an on-demand node."""
        return self.state.known.rules.floor

    @property
    def worth_asking(self) -> tuple[int, ...]:
        """Worker counts to ask an autoscaler for, ascending: each is faster than all smaller ones."""
        return self.state.known.rules.worth_asking

    # -- events

    def note(self, event: Event) -> None:
        """Queue an event for the ledger of the group that runs, or of the next one."""
        self._know(self.state.known.telling(event))

    def started(self, nodes: tuple[str, ...]) -> None:
        """Record that a group was started. `nodes[rank]` is the node of each worker."""
        state, known = self.state, self.state.known
        self._losses = self._losses.after_start()
        known = replace(known, history=known.history.after_placement(len(nodes)), has_begun=True)
        if (missing := floor_missing(nodes, self._on_demand, known.rules.floor)) is not None:
            known = known.telling(missing)
        if isinstance(state, Ending):
            self._know(known)
            return
        pause = state.pause if isinstance(state, Idle) else state.group.pause
        self.state = Running(known=known, group=Group.started(nodes, pause, self._clock()))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Record a step that rank 0 reported. `planner.train.step_records` has the keys."""
        self._know_history(self.history.after_report(metrics))
        if isinstance(self.state, Idle | Ending):
            return
        self.state = replace(self.state, group=self.state.group.stepped(metrics, self._clock()))
        self._remember_told(self.state)
        self._note_durable(self.state.group)
        if self.state.group.num_steps == 1:
            self._measure_resize(self.state, int(metrics["num_again"]), float(metrics["seconds"]))
        else:
            # The first step of a group is slower: caches, compilation and, in `bitwise`, a repetition.
            history = self.history.after_step(
                int(metrics["world_size"]),
                float(metrics["seconds"]),
                float(metrics["step_cost"]),
                float(metrics.get("communication_s", 0.0)),
            )
            self._know_history(history)

    def committed(self, seconds: float, durable_after_s: float, *, is_held: bool = False) -> None:
        """Record that the group has parked.

        Args:
            seconds: of its last commit, or with `is_held` of the copy into memory. 0 if all was committed already.
            durable_after_s: seconds from the end of its last step until that was durable, or with `is_held` until its
                copies were sealed. They are longer than the commit, if another one was in flight.
            is_held: whether its last step is only in memory.
        """
        if isinstance(self.state, Idle | Ending):
            return
        group = replace(self.state.group, durable_after_s=durable_after_s, is_held=is_held)
        known, history = self.state.known, self.history
        after = history.after_copy(group.size, seconds) if is_held else history.after_commit(group.size, seconds)
        held_only_step = max(group.num_done, known.unsaved_step) if is_held else 0
        self.state = replace(
            self.state,
            known=replace(known, history=after, held_only_step=held_only_step, maybe_held_step=0),
            group=group,
        )

    def failed(
        self,
        dead: frozenset[str],
        blamed: frozenset[str],
        reason: Event,
        mistake: Mistake | None = None,
        out_of_memory: Sequence[OutOfMemory] = (),
    ) -> None:
        """Record that the group failed.

        Args:
            dead: nodes that are gone.
            blamed: nodes that are alive, but whose worker died.
            reason: how the first worker failed.
            mistake: the error of the user's code that was the reason, or None.
            out_of_memory: workers that ran out of memory, one for each kind of device.

        Raises:
            GaveUp: there were too many failures that no lost node explains, or another try would meet the same
                mistake or lack of memory.
        """
        now_s = self._clock()
        group = None if isinstance(self.state, Idle | Ending) else self.state.group
        in_memory = group.can_hold if group is not None else bool(self.state.known.unsaved_step)
        self._losses = self._losses.after_failure(dead, now_s, from_memory=in_memory)
        self._tell_losses(now_s)
        state = self.state
        # A lost node explains the failure, so it does not count as one of the job's own.
        known = state.known if dead else after_own_failure(state.known, blamed, reason, now_s, mistake, out_of_memory)
        if not isinstance(state, Idle | Ending) and state.group.can_hold:
            group = state.group
            maybe = group.num_done if group.num_done > group.durable_step else 0
            known = replace(known, maybe_held_step=max(maybe, known.maybe_held_step))
        if isinstance(state, Ending):
            self._know(known)
        # Without a lost node, this is no resize, and its pause no price of one.
        elif dead and not isinstance(state, Idle):
            known = replace(known, history=known.history.after_forced(state.group.started_s, now_s))
            self.state = Idle(known=known, pause=forced_pause(state.group, now_s))
        else:
            self.state = Idle(known=known)

    def lost_memory(self, reason: Event) -> None:
        """Record that the copies were gone when the group loaded them. No worker failed: the next group looks again."""
        known = self.state.known.telling(MemoryLost(reason=reason))
        self.state = replace(self.state, known=known) if isinstance(self.state, Ending) else Idle(known=known)

    def unplaced(self, placed: int, asked: int) -> None:
        """Record that only `placed` of `asked` workers got a place in time, so the group did not start."""
        history, held = self.history.with_hold(placed, Unplaced(placed=placed, asked=asked), self._clock())
        self._know(replace(self.state.known, history=history).telling(held))

    # -- the state

    def _know(self, known: ControllerContext) -> None:
        self.state = replace(self.state, known=known)

    def _tell_losses(self, now_s: float) -> tuple[Event, ...]:
        """Queue or complete the event about lost nodes. Returns it if it is new."""
        before = self._losses.event
        self._losses, queue = self._losses.told(self.state.known.events, now_s)
        self._know(replace(self.state.known, events=queue))
        found = self._losses.event
        return (found,) if found is not None and found != before else ()

    def _know_history(self, history: History) -> None:
        self._know(replace(self.state.known, history=history))

    def _remember_told(self, state: WithGroup) -> None:
        """Remember what the group was told: it writes its notes at each step."""
        if state.group.told:
            known = replace(state.known, told={**state.known.told, **state.group.told})
            self.state = replace(state, known=known, group=replace(state.group, told={}))

    def _note_durable(self, group: Group) -> None:
        """Forget the step that was only in memory if it is durable now, or if the group began before it."""
        self._know(replace(self.state.known, maybe_held_step=0))  # this group's own steps count from now on
        held = self.state.known.held_only_step
        if not held or not (group.began_step < held or group.durable_step >= held):
            return
        if group.began_step < held:
            self.note(HeldStepLost(step=held, resumed_step=group.began_step))
        self._know(replace(self.state.known, held_only_step=0))

    def _measure_resize(self, state: WithGroup, num_again: int, first_step_s: float) -> None:
        """Record what the resize that made this group cost.

        Args:
            state: with the group.
            num_again: steps on record that the group does again.
            first_step_s: seconds of its first step.
        """
        group, history = state.group, self.history
        # Measured once: later steps of the group end no pause.
        pause, group = group.pause, replace(group, pause=NotAResize())
        if not isinstance(pause, NotAResize):
            cost = price(
                pause,
                size=group.size,
                num_again=num_again,
                step_ended_s=group.seen_s,
                first_step_s=first_step_s,
                step_s=history.step_s(pause.from_size),
            )
            history = history.after_resize(cost.seconds, is_growth=cost.is_growth)
            if isinstance(pause, PlannedPause) and pause.is_held:
                history = history.after_hand_over(cost.stood_still_s)
            size, steps_again = pause.from_size, cost.num_again
            self.note(Resized(size=size, to=group.size, cost_s=cost.seconds, steps_again=steps_again))
        self.state = replace(state, known=self.state.known, group=group)
        self._know_history(history.after_first_step(group.size, first_step_s, group.seen_s - group.started_s))
