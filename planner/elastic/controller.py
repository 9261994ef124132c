"""The elastic controller decides when to start, resize or stop a worker group.

It does not know Ray: its caller observes and acts (`planner.dispatch.ray_internal.policy`). The pure function
`planner.elastic.step` decides from a state, a view and the time. This class keeps the state between two views and
records events.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.base.text import counted, duration
from planner.elastic.group import Group
from planner.elastic.history import History
from planner.elastic.pause import NotAResize, price
from planner.elastic.states import ControllerContext, Ending, Idle, Rules, Running, State, WithGroup
from planner.elastic.step import after_failure, forced_pause, step
from planner.elastic.view import Act, View
from planner.plan import ResizeCost


class ElasticController:
    """Holds the state of one launch, in the process that controls the workers."""

    def __init__(self, rules: Rules, *, cost: ResizeCost, clock: Callable[[], float]) -> None:
        """Begin a launch.

        Args:
            rules: what the job and the launch fix.
            cost: expected cost of a resize, used until this launch has measured one.
            clock: seconds, never going back.
        """
        history = History(sizes=rules.sizes, default_cost=cost)
        self._clock = clock
        self.state: State = Idle(known=ControllerContext(rules=rules, history=history))

    # -- decisions

    def step(self, view: View) -> Act:
        """Advance the state with what is seen now, and return what to do.

        Raises:
            TrainingFailed: the group hangs, and there were too many failures that no lost node explains.
        """
        self.state, act = step(self.state, view, self._clock())
        return act

    @property
    def history(self) -> History:
        """Speeds, costs and failures that this launch has measured so far."""
        return self.state.known.history

    @property
    def texts(self) -> tuple[str, ...]:
        """Notes not yet in a ledger, oldest first. The next group that runs writes them."""
        return self.state.known.texts

    @property
    def bad_nodes(self) -> tuple[str, ...]:
        """Nodes whose workers die again and again. No worker should be placed there."""
        return self.history.bad_nodes(self._clock())

    @property
    def worth_asking(self) -> tuple[int, ...]:
        """Worker counts to ask an autoscaler for, ascending: each is faster than all smaller ones."""
        return self.state.known.rules.worth_asking

    # -- events

    def note(self, text: str) -> None:
        """Queue a text for the ledger of the group that runs, or of the next one."""
        self._know(self.state.known.telling(text))

    def started(self, nodes: tuple[str, ...]) -> None:
        """Record that a group was started. `nodes[rank]` is the node of each worker."""
        state, known = self.state, self.state.known
        known = replace(known, history=known.history.after_placement(len(nodes)))
        if isinstance(state, Ending):
            self._know(known)
            return
        pause = state.pause if isinstance(state, Idle) else state.group.pause
        self.state = Running(known=known, group=Group.started(nodes, pause, self._clock()))

    def reported(self, metrics: Mapping[str, Any]) -> None:
        """Record a step that rank 0 reported. `planner.train.loop` has the keys."""
        self._know_history(self.history.after_report(metrics))
        if isinstance(self.state, Idle | Ending):
            return
        self.state = replace(self.state, group=self.state.group.stepped(self._clock()))
        if self.state.group.num_steps == 1:
            self._measure_resize(self.state, int(metrics["step"]), float(metrics["seconds"]))
        else:
            # The first step of a group is slower: caches, compilation and, in `bitwise`, a repetition.
            self._know_history(self.history.after_step(int(metrics["world_size"]), float(metrics["seconds"])))

    def committed(self, seconds: float) -> None:
        """Record that the group has parked after a commit of `seconds`. 0 if all was committed already."""
        if not isinstance(self.state, Idle | Ending):
            self._know_history(self.history.after_commit(self.state.group.size, seconds))

    def failed(self, dead: frozenset[str], blamed: frozenset[str], reason: str) -> None:
        """Record that the group failed.

        Args:
            dead: nodes that are gone.
            blamed: nodes that are alive, but whose worker died.
            reason: how the first worker failed.

        Raises:
            TrainingFailed: there were too many failures that no lost node explains.
        """
        state, now_s = self.state, self._clock()
        if dead:
            known = state.known.telling(f"{counted(len(dead), 'node')} lost: training resumes from the last commit")
        else:
            known = after_failure(state.known, blamed, reason, now_s)
        if isinstance(state, Ending):
            self._know(known)
        elif dead and not isinstance(state, Idle):
            self.state = Idle(known=known, pause=forced_pause(known, state.group, now_s))
        else:
            self.state = Idle(known=known)

    def unplaced(self, placed: int, asked: int) -> None:
        """Record that only `placed` of `asked` workers got a place in time, so the group did not start."""
        reason = f"only {placed} of {asked} workers got a place"
        history, text = self.history.with_hold(placed, reason, self._clock())
        self._know(replace(self.state.known, history=history).telling(text))

    # -- the state

    def _know(self, known: ControllerContext) -> None:
        self.state = replace(self.state, known=known)

    def _know_history(self, history: History) -> None:
        self._know(replace(self.state.known, history=history))

    def _measure_resize(self, state: WithGroup, step: int, first_step_s: float) -> None:
        """Record what the resize that made this group cost. Its first step took `first_step_s`."""
        group, history = state.group, self.history
        pause, group = group.pause, replace(group, pause=NotAResize())
        if not isinstance(pause, NotAResize):
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
