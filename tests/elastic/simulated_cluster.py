"""Nodes that come and go in virtual time, a group that trains on some of them, and the controller that decides."""

import math

from message import Message

from planner.elastic.controller import ElasticController
from planner.elastic.states import Rules
from planner.elastic.view import View
from planner.plan import BatchSizes, WorkerRange, make_plan
from planner.plan.growth import ResizeCost

TICK_S = 0.25
DIED = Message(text="it died")


class Cluster:
    """Nodes of one worker each, a group that trains on some of them, and a controller that watches."""

    tick_s = TICK_S

    def __init__(
        self, nodes, *, global_batch=48, least=1, most=16, total_steps=100_000, grow_s=1.4, shrink_s=1.0, sample_s=0.1
    ):
        self.sample_s = sample_s
        self.now = 0.0
        self.nodes = [f"n{i}" for i in range(nodes)]
        self.numbered = nodes
        self.draining = {}
        self.lives_on_s = 0.0
        self.group = ()
        self.stopping_since = None
        self.blocked_until = 0.0
        self.step = self.committed = self.recomputed = self.num_again = 0
        self.total_steps = total_steps
        self.global_batch = global_batch
        self.events, self.sizes, self.acts = [], [], []
        self.newcomers = "none"
        self.warm_since = 0.0
        self.commit_s, self.in_flight_s = 0.5, 0.0
        self.hung = False
        self.grow_s, self.shrink_s = grow_s, shrink_s
        self.progress = 0.0
        self.units = 0.0
        self.deaf = frozenset()
        self.least, self.most = least, most
        self.is_ending = self.can_hold = False
        self.controller = self.new_controller()

    def new_controller(self, **rules):
        rules = Rules(
            sizes=BatchSizes(global_batch=self.global_batch, max_micro=8),
            workers=WorkerRange(least=self.least, most=self.most),
            **{"has_eval": False, **rules},
        )
        cost = ResizeCost(grow_s=self.grow_s, shrink_s=self.shrink_s)
        return ElasticController(rules, cost=cost, clock=lambda: self.now)

    @property
    def step_s(self):
        return self.sample_s * math.ceil(self.global_batch / len(self.group))

    def add(self, count=1):
        for _ in range(count):
            self.nodes.append(f"n{self.numbered}")
            self.numbered += 1

    def drain(self, node, in_s):
        self.draining[node] = self.now + in_s

    def kill(self, node):
        self.nodes.remove(node)
        self.draining.pop(node, None)
        if node in self.group:
            self.fail(dead={node})

    def fail(self, dead=(), blamed=(), reason=DIED, **mistake):
        self.lose_steps()
        self.group, self.stopping_since, self.newcomers = (), None, "none"
        self.controller.failed(frozenset(dead), frozenset(blamed), reason, **mistake)

    @property
    def begins_with(self):
        """The step that a new group starts from."""
        return self.committed

    def lose_steps(self):
        lost = self.step - self.begins_with
        self.num_again = lost or self.num_again  # a group that dies before its first step leaves all to the next
        self.recomputed += lost
        self.step = self.begins_with

    def run(self, seconds, tick_s=None):
        """Let time pass. Hours in which little happens may pass in longer ticks."""
        usual_s, self.tick_s = self.tick_s, tick_s or self.tick_s
        end = self.now + seconds
        while self.now < end:
            self.tick()
        self.tick_s = usual_s
        return self

    def tick(self):
        self.now += self.tick_s
        for node, at in list(self.draining.items()):
            if self.now >= at + self.lives_on_s:
                self.kill(node)
        room = {node: 1 for node in self.nodes if node not in self.draining}
        if not self.group:
            self.act(self.controller.step(View(room=room, draining={}, is_ending=self.is_ending)))
            return
        self.train()
        parked = range(len(self.group)) if self.is_parked else ()
        draining = {node: max(at - self.now, 0.0) for node, at in self.draining.items()}
        if self.newcomers == "warming" and self.now - self.warm_since > 4:
            self.newcomers = "ready"
        view = View(
            room=room,
            draining=draining,
            nodes=self.group,
            parked=frozenset(parked),
            silent=self.deaf,
            newcomers=self.newcomers,
            progress=int(self.units),
            can_hold=self.can_hold,
            is_ending=self.is_ending,
        )
        self.act(self.controller.step(view))

    @property
    def is_parked(self):
        if self.hung or self.stopping_since is None:
            return False
        return self.now - self.stopping_since > self.step_s + self.commit_s

    def compute(self):
        """A part of a step; each round of it counts as progress."""
        self.progress += self.tick_s / self.step_s
        self.units += self.tick_s / self.step_s * self.plan.accumulation_steps

    @property
    def plan(self):
        return make_plan(BatchSizes(global_batch=self.global_batch, max_micro=8), len(self.group))

    def train(self):
        if self.hung or self.now < self.blocked_until:
            return
        if self.stopping_since is not None:
            if self.is_parked:
                self.committed = self.step
                self.controller.committed(self.commit_s, self.in_flight_s + self.commit_s)
            return
        self.compute()
        while self.progress >= 1:
            self.progress -= 1
            self.step += 1
            self.controller.reported(
                {
                    "step": self.step - 1,
                    "total_steps": self.total_steps,
                    "max_micro": 8,
                    "max_tokens": None,
                    "step_cost": 8,
                    "num_again": self.num_again,
                    "world_size": len(self.group),
                    "seconds": self.step_s,
                    "held_step": self.committed,
                    "copied_step": 0,
                    "durable_step": self.committed,
                    "is_last": False,
                    "commit_s": self.commit_s,
                    "eval_s": 0.0,
                }
            )

    def tell(self, act):
        self.events += act.events

    def told(self, *kinds):
        """The events of these kinds, oldest first."""
        return [event for event in self.events if isinstance(event, kinds)]

    def act(self, act):
        self.tell(act)
        if act.kind != "nothing":
            self.acts.append((self.now, act))
        if act.kind == "warm":
            self.newcomers, self.warm_since = "warming", self.now
        elif act.kind == "abandon_newcomers":
            self.newcomers = "none"
        elif act.kind == "stop":
            self.stopping_since = self.now - self.step_s * act.cut
        elif act.kind == "resize":
            if not act.planned and self.group:
                self.lose_steps()
            stays = [n for n in self.group if n in self.nodes and n not in self.draining]
            others = [n for n in self.nodes if n not in stays and n not in self.draining]
            # The policy keeps workers off bad nodes, where there is room enough without them.
            bad = self.controller.bad_nodes
            others.sort(key=lambda node: node in bad)
            stays = [node for node in stays if node not in bad]
            pause = self.grow_s if act.world_size > len(self.group) else self.shrink_s
            self.group = tuple([*stays, *others][: act.world_size])
            assert len(self.group) == act.world_size
            self.sizes.append(act.world_size)
            self.blocked_until = self.now + pause
            self.stopping_since, self.newcomers, self.hung, self.progress = None, "none", False, 0.0
            self.controller.started(self.group)


class Blocking(Cluster):
    """Commits and evaluations that take their time, told as the loop tells them: 0 in a group before its first."""

    def __init__(
        self, nodes, *, commit_s=0.5, every_steps=10**9, eval_s=0.0, eval_every=10**9, newcomers="", **options
    ):
        super().__init__(nodes, **options)
        self.commit_s, self.every_steps, self.eval_s, self.eval_every = commit_s, every_steps, eval_s, eval_every
        self.controller = self.new_controller(has_eval=eval_s > 0)
        self.seen_commit_s = self.seen_eval_s = self.evaluating_until = 0.0
        self.parked_at = None
        self.newcomers_are = newcomers

    @property
    def is_parked(self):
        return self.parked_at is not None and self.now >= self.parked_at

    def train(self):
        if self.hung or self.now < self.blocked_until:
            return
        if self.stopping_since is not None:
            if self.parked_at is None:
                self.parked_at = max(self.now + self.step_s, self.evaluating_until) + self.commit_s
            if self.is_parked:
                self.committed = self.step
                self.controller.committed(self.commit_s, self.in_flight_s + self.commit_s)
            return
        if self.now < self.evaluating_until:
            return
        self.compute()
        while self.progress >= 1:
            self.progress -= 1
            self.step += 1
            if self.step - self.committed >= self.every_steps:
                self.committed, self.seen_commit_s = self.step, self.commit_s
                self.blocked_until = self.now + self.commit_s
            self.controller.reported(
                {
                    "step": self.step - 1,
                    "total_steps": self.total_steps,
                    "max_micro": 8,
                    "max_tokens": None,
                    "step_cost": 8,
                    "num_again": self.num_again,
                    "world_size": len(self.group),
                    "seconds": self.step_s,
                    "held_step": self.committed,
                    "copied_step": 0,
                    "durable_step": self.committed,
                    "is_last": False,
                    "commit_s": self.seen_commit_s,
                    "eval_s": self.seen_eval_s,
                }
            )
            if self.step % self.eval_every == 0:
                self.evaluating_until, self.seen_eval_s = self.now + self.eval_s, self.eval_s

    def act(self, act):
        super().act(act)
        if act.kind == "resize":
            self.parked_at, self.seen_commit_s, self.seen_eval_s, self.evaluating_until = None, 0.0, 0.0, 0.0
        if act.kind == "warm" and self.newcomers_are == "stuck":
            self.warm_since = math.inf
        if act.kind == "warm" and self.newcomers_are == "slow":
            self.warm_since += 600

    def tick(self):
        if self.newcomers_are == "failing" and self.newcomers == "warming" and self.now - self.warm_since > 2:
            self.newcomers = "failed"
        super().tick()

    def until_evaluating(self):
        while self.evaluating_until <= self.now:
            self.tick()
        return self


class Holding(Cluster):
    """A keeper on each node. A stop in memory takes a copy, and a durable one waits for storage, which is slow.

    A group that begins from memory commits at once, in the background. All copies are lost with `forget`.
    """

    def __init__(self, nodes, *, copy_s=0.25, write_s=20.0, **options):
        super().__init__(nodes, **options)
        self.copy_s, self.commit_s, self.can_hold = copy_s, write_s, True
        self.newest_held = 0
        self.write = None
        """(step, when it is durable), of the commit in flight"""
        self.stop_in_memory, self.parked_at = False, None
        self.is_lossy = False
        """whether all copies are lost before anybody can load them"""
        self.stops = []

    @property
    def begins_with(self):
        return max(self.newest_held, self.committed)

    def forget(self):
        """Lose what all keepers hold."""
        self.newest_held = 0

    def fail(self, **reasons):
        self.write = self.parked_at = None
        super().fail(**reasons)

    @property
    def is_parked(self):
        return self.parked_at is not None and self.now >= self.parked_at

    def land(self):
        if self.write is not None and self.now >= self.write[1]:
            self.committed, self.write = self.write[0], None

    def train(self):
        if self.hung or self.now < self.blocked_until:
            return
        self.land()
        if self.stopping_since is None:
            self.compute()
            while self.progress >= 1:
                self.progress -= 1
                self.step += 1
                self.report()
            return
        if self.parked_at is None:
            storage_s = max(self.write[1] - self.now if self.write else 0.0, 0.0) + self.commit_s
            self.parked_at = self.now + self.step_s + (self.copy_s if self.stop_in_memory else storage_s)
            self.holds = self.stop_in_memory
        if self.is_parked and self.holds:
            self.newest_held = 0 if self.is_lossy else self.step
            self.controller.committed(self.copy_s, self.copy_s, is_held=True)
        elif self.is_parked:
            self.committed, self.write = self.step, None
            self.controller.committed(self.commit_s, self.commit_s)

    def report(self):
        self.controller.reported(
            {
                "step": self.step - 1,
                "total_steps": self.total_steps,
                "step_cost": 8,
                "num_again": self.num_again,
                "world_size": len(self.group),
                "seconds": self.step_s,
                "held_step": self.write[0] if self.write else self.committed,
                "copied_step": 0,
                "durable_step": self.committed,
                "is_last": False,
                "commit_s": self.commit_s,
                "eval_s": 0.0,
            }
        )

    def act(self, act):
        if act.kind == "stop":
            self.stop_in_memory = act.in_memory
            self.parked_at = None if self.parked_at is None or self.now < self.parked_at else self.parked_at
            self.stops.append((act.in_memory, self.controller.state.group.is_fresh))
        super().act(act)
        if act.kind == "resize":
            self.lose_steps()  # none, unless memory was lost
            is_held = self.step > self.committed
            self.write = (self.step, self.blocked_until + self.commit_s) if is_held else None
            self.parked_at = None
