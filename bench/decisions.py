"""A digest of every decision of the elastic controller over traces of spot capacity, in virtual time.

    python bench/decisions.py [--traces ../shared/traces] [--write]

A change of the controller that is meant to change no decision must leave every line as it is. Each trace is walked with
several jobs: batch sizes, bounds, costs of a resize and of a commit, and shares of losses with notice. Into it come
hangs, failures, newcomers that fail, withdrawn notices and clocks that jump, all drawn with a seed. A line has the
number of looks, the number of decisions that were not "nothing" with a SHA-256 over all of them and their times, and
the number of texts with a SHA-256 over all of them, sorted. Only a difference in decisions fails.

`--write` keeps the lines in bench/results/decisions.json. Without it they are compared with that file.
"""

import argparse
import hashlib
import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parents[1] / "tests" / name) for name in ("dispatch", "elastic", "harness")]
from message import Message  # type: ignore[import-not-found]
from simulated_cluster import Blocking  # type: ignore[import-not-found]
from spot_trace import Trace, read_trace  # type: ignore[import-not-found]

from planner.elastic.mistakes import GaveUp
from planner.events.sizing import Waited
from planner.wording.event_text import text_of

_RESULTS = Path(__file__).parent / "results" / "decisions.json"
_MOST_LOOKS = 40_000
# (share of losses with notice, its seconds, how long nodes live on after the moment that was named)
_NOTICES = ((0.0, 0.0, 0.0), (0.5, 120.0, 3.0), (1.0, 30.0, 0.0), (1.0, 0.0, 6.0))
_JOBS: dict[str, dict[str, Any]] = {
    "kept": {"most": 16, "commit_s": 0.5, "every_steps": 60},
    "new": {"most": 16, "grow_s": 9.3, "shrink_s": 6.7, "commit_s": 3.0, "every_steps": 30},
    "large": {
        "global_batch": 512,
        "most": 32,
        "least": 4,
        "sample_s": 0.25,
        "grow_s": 60.0,
        "shrink_s": 60.0,
        "commit_s": 15.0,
        "every_steps": 100,
        "eval_s": 60.0,
        "eval_every": 300,
    },
    "slow": {"global_batch": 96, "most": 24, "sample_s": 10.0, "grow_s": 10.0, "commit_s": 20.0, "every_steps": 10},
    "narrow": {"global_batch": 24, "most": 9, "least": 7, "sample_s": 0.5, "total_steps": 3000},
    "eager": {"most": 12, "sample_s": 0.2, "every_steps": 40, "rules": {"eager": True}},
    "shared": {"most": 12, "sample_s": 0.2, "every_steps": 40, "rules": {"on_one_machine": True}},
}


class Recorded(Blocking):  # type: ignore[misc]
    """A cluster that writes down each decision, and goes on with a new launch where the controller gives up."""

    def __init__(self, tick_s: float, notice: tuple[float, float, float], job: dict[str, Any]) -> None:
        options = {key: value for key, value in job.items() if key != "rules"}
        super().__init__(0, **options)
        self.tick_s, (self.share, self.notice_s, self.lives_on_s) = tick_s, notice
        self.rules = {"has_eval": self.eval_s > 0, **job.get("rules", {})}
        self.controller = self.new_controller(**self.rules)
        self.digest, self.num_looks, self.num_decisions = hashlib.sha256(), 0, 0
        self.texts: list[str] = []
        self.hung_since = 0.0

    def tell(self, act: Any) -> None:
        """Keep the texts of its events. A wait was not always an event, so it is left out, as in earlier results."""
        self.texts += [text_of(event) for event in act.events if not isinstance(event, Waited)]

    def record(self, *facts: object) -> None:
        """Add them to the digest, with the time."""
        self.digest.update(repr((round(self.now, 6), *facts)).encode())

    def act(self, act: Any) -> None:
        """Do it, and write down what was decided."""
        self.num_looks += 1
        self.num_decisions += act.kind != "nothing"
        places = len([node for node in self.nodes if node not in self.draining])
        if act.kind == "resize" and places < act.world_size:
            self.group, self.stopping_since, self.newcomers, self.hung = (), None, "none", False
            self.controller.unplaced(places, act.world_size)
        elif act.kind == "end":
            self.tell(act)
            self.relaunch()
        else:
            super().act(act)
        if act.kind != "nothing":
            self.record(act.kind, act.world_size, act.planned, self.controller.bad_nodes)

    def relaunch(self) -> None:
        """A new launch, with a controller that knows nothing yet."""
        self.record("relaunch", self.step)
        self.texts += self.pending_texts()
        self.group, self.stopping_since, self.newcomers, self.hung = (), None, "none", False
        self.controller, self.is_ending = self.new_controller(**self.rules), False

    def pending_texts(self) -> list[str]:
        """The texts that the controller has not handed over yet."""
        return [text_of(event) for event in self.controller.events]

    def tick(self) -> None:
        """One look."""
        try:
            super().tick()
        except GaveUp as error:
            self.record("failed")
            self.texts.append(text_of(error.event))
            self.relaunch()

    def follow(self, count: int, rng: random.Random) -> None:
        """Nodes until there are `count`: those that have had notice do not count."""
        staying = [node for node in self.nodes if node not in self.draining]
        self.add(max(count - len(staying), 0))
        for node in rng.sample(staying, max(len(staying) - count, 0)):
            if rng.random() < self.share:
                self.drain(node, self.notice_s)
            else:
                self.kill(node)

    def incident(self, rng: random.Random) -> None:
        """Something that no trace tells of."""
        kind = rng.choice(["hang", "deaf", "blame", "fail", "newcomers", "withdraw", "jump", "tell", "end", "notice"])
        if kind in {"hang", "deaf"} and self.group:
            self.hung, self.hung_since = True, self.now
            self.deaf = frozenset({rng.randrange(len(self.group))}) if kind == "deaf" else frozenset()
        elif kind == "blame" and self.group:
            self.fail(blamed={rng.choice(self.group[:2])}, reason=Message(text="it died"))
        elif kind == "fail" and self.group:
            self.fail(reason=Message(text="of no node's making"))
        elif kind == "newcomers":
            self.newcomers_are = rng.choice(["", "", "failing", "stuck", "slow"])
        elif kind == "withdraw" and self.draining:
            self.draining.pop(rng.choice(sorted(self.draining)))
        elif kind == "jump":
            self.now += rng.choice([20.0, 900.0])
        elif kind == "tell":
            self.controller.note(Message(text="so they say"))
        elif kind == "end" and rng.random() < 0.3:
            self.is_ending = True
        elif kind == "notice" and self.group:
            self.drain(rng.choice(self.group), rng.choice([0.0, 20.0, 300.0, 4000.0]))


def walk(trace: Trace, job: str, notice: tuple[float, float, float], seed: int) -> dict[str, Any]:
    """One job through one trace."""
    rng = random.Random(seed)
    tick_s = max(0.5, trace.end_s / _MOST_LOOKS)
    cluster = Recorded(tick_s, notice, _JOBS[job])
    incident_s = 600.0
    while cluster.now < trace.end_s:
        try:
            cluster.follow(trace.at(cluster.now), rng)
            if cluster.now >= incident_s:
                incident_s = cluster.now + rng.expovariate(1 / 300.0)
                cluster.incident(rng)
        except GaveUp as error:
            cluster.record("failed")
            cluster.texts.append(text_of(error.event))
            cluster.relaunch()
        if not cluster.group:
            cluster.deaf = frozenset()
        cluster.tick()
        if not cluster.hung:
            cluster.deaf = frozenset()
    cluster.record("end", cluster.step, cluster.sizes)
    texts = sorted([*cluster.texts, *cluster.pending_texts()])
    return {
        "looks": cluster.num_looks,
        "decisions": cluster.num_decisions,
        "decisions_sha256": cluster.digest.hexdigest(),
        "texts": len(texts),
        "texts_sha256": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
    }


def main() -> None:
    """Walk all, print the lines and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    files = sorted(file for file in options.traces.glob("*.csv") if file.stem.count(".") == 0 and file.stem != "INDEX")
    if not files:
        sys.exit(f"no traces in {options.traces}")
    with ProcessPoolExecutor(max_workers=2) as pool:
        walks = {
            f"{file.stem} {job} {number}": pool.submit(walk, read_trace(file), job, _NOTICES[number], number)
            for file in files
            for place, job in enumerate(_JOBS)
            for number in {place % len(_NOTICES), (place + 1) % len(_NOTICES)}
        }
        found = {name: future.result() for name, future in walks.items()}
    print(
        f"{len(found)} walks: {sum(w['looks'] for w in found.values()):,} looks, "
        f"{sum(w['decisions'] for w in found.values()):,} decisions"
    )
    if options.write:
        _RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        return
    known = json.loads(_RESULTS.read_text())
    decided = [name for name in found if _without_texts(found[name]) != _without_texts(known.get(name, {}))]
    said = [name for name in found if name not in decided and found[name] != known[name]]
    print(f"texts differ in {len(said)} walks")
    sys.exit(f"decisions differ in {len(decided)} walks: {', '.join(decided)}" if decided else "decisions as before")


def _without_texts(line: dict[str, Any]) -> dict[str, Any]:
    """The part of a walk's line that depends on decisions alone."""
    return {key: value for key, value in line.items() if not key.startswith("texts")}


if __name__ == "__main__":
    main()
