"""The elastic controller: decides for a worker group while it runs, and before it is started.

It knows no Ray: its caller observes and acts (`planner.dispatch.ray_internal.policy`). `planner.elastic.step` decides,
as a pure function of a state, a view and the time. This class keeps the state between two looks and takes in events.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.base.text import counted, duration
from planner.elastic.group import Group
from planner.elastic.history import History
from planner.elastic.pause import UnmeasuredPause, price
from planner.elastic.states import Ending, Idle, Known, Rules, Running, State, WithGroup
from planner.elastic.step import after_failure, forced_pause, step
from planner.elastic.view import Act, View
from planner.plan import ResizeCost


class ElasticController:
    """One per launch, in the process that controls the workers."""

    def __init__(self, rules: Rules, *, cost: ResizeCost, clock: Callable[[], float]) -> None:
        """Begin a launch. `cost` is that of a resize, until this launch has measured its own."""
        history = History(sizes=rules.sizes, default_cost=cost)
        self._clock = clock
        self.state: State = Idle(known=Known(rules=rules, history=history))

    # -- what to do

    def step(self, view: View) -> Act:
        """What to do now.

        Raises:
            TrainingFailed: the group hangs, and failures that no lost node explains come too often.
        """
        self.state, act = step(self.state, view, self._clock())
        return act

    @property
    def history(self) -> History:
        """What the launch has learned so far."""
        return self.state.known.history

    @property
    def texts(self) -> tuple[str, ...]:
        """What waits to be told, until a group runs that can write it into its ledger."""
        return self.state.known.texts

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again; no worker is to be placed there."""
        return self.history.bad_nodes(self._clock())

    @property
    def worth_asking(self) -> tuple[int, ...]:
        """How many workers to ask an autoscaler for, the last best, rising: no count that a smaller one equals."""
        return self.state.known.rules.worth_asking

    # -- what the caller saw happen

    def note(self, text: str) -> None:
        """Something for the ledger, of the group that runs or of the next one."""
        self._know(self.state.known.telling(text))

    def started(self, nodes: tuple[str, ...]) -> None:
        """A group was started; `nodes` by rank."""
        state, known = self.state, self.state.known
        known = replace(known, history=known.history.after_placement(len(nodes)))
        if isinstance(state, Ending):
            self._know(known)
            return
        pause = state.pause if isinstance(state, Idle) else state.group.pause
        self.state = Running(known=known, group=Group.started(nodes, pause, self._clock()))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Rank 0 reported a step: see `planner.train.loop`."""
        self._know_history(self.history.after_report(metrics))
        if isinstance(self.state, Idle | Ending):
            return
        self.state = replace(self.state, group=self.state.group.stepped(self._clock()))
        if self.state.group.num_steps == 1:
            self._measure_resize(self.state, int(metrics["step"]), float(metrics["seconds"]))
        else:
            # The first step of a group also pays for caches, compilation and, in `bitwise`, a repetition.
            self._know_history(self.history.after_step(int(metrics["world_size"]), float(metrics["seconds"])))

    def committed(self, seconds: float) -> None:
        """The group has parked. Its commit took so many seconds; 0 if everything was committed already."""
        if not isinstance(self.state, Idle | Ending):
            self._know_history(self.history.after_commit(self.state.group.size, seconds))

    def failed(self, dead: frozenset[str], blamed: frozenset[str], reason: str) -> None:
        """The group failed. `dead`: nodes that are gone; `blamed`: nodes that live, and whose worker died.

        Raises:
            TrainingFailed: failures that no lost node explains come too often.
        """
        state, now_s = self.state, self._clock()
        if dead:
            known = state.known.telling(f"{counted(len(dead), 'node')} lost; on from the last commit")
        else:
            known = after_failure(state.known, blamed, reason, now_s)
        if isinstance(state, Ending):
            self._know(known)
        elif dead and not isinstance(state, Idle):
            self.state = Idle(known=known, pause=forced_pause(known, state.group, now_s))
        else:
            self.state = Idle(known=known)

    def unplaced(self, placed: int, asked: int) -> None:
        """A group was to start with `asked` workers, and only `placed` of them got their place in time."""
        why = f"only {placed} of {asked} workers got a place"
        history, text = self.history.with_hold(placed, why, self._clock())
        self._know(replace(self.state.known, history=history).telling(text))

    # -- the state

    def _know(self, known: Known) -> None:
        self.state = replace(self.state, known=known)

    def _know_history(self, history: History) -> None:
        self._know(replace(self.state.known, history=history))

    def _measure_resize(self, state: WithGroup, step: int, first_step_s: float) -> None:
        """Record the price of the resize that made this group. Its first step took `first_step_s`."""
        group, history = state.group, self.history
        pause, group = group.pause, replace(group, pause=UnmeasuredPause())
        if not isinstance(pause, UnmeasuredPause):
            cost = price(
                pause,
                size=group.size,
                step=step,
                step_ended_s=group.seen_s,
                first_step_s=first_step_s,
                step_s=history.step_s(pause.from_size),
            )
            history = history.after_resize(cost.seconds, is_growth=cost.is_growth)
            done_again = f", with {counted(cost.num_again, 'step')} done again" if cost.num_again else ""
            resize = f"{pause.from_size} -> {group.size} workers"
            self.note(f"{resize} cost {duration(cost.seconds)} of training{done_again}")
        self.state = replace(state, known=self.state.known, group=group)
        self._know_history(history.after_first_step(group.seen_s - group.started_s))
