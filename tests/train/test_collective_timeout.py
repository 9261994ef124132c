"""How long silence may last, and when a collective is given up."""

from dataclasses import replace
from datetime import timedelta

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from planner.elastic.group import Group, silence_limit_s, start_limit_s
from planner.elastic.history import History
from planner.elastic.pause import NotAResize
from planner.plan import (
    FIRST_COLLECTIVES_S,
    BatchSizes,
    first_collectives_s,
    longest_collective_s,
    longest_silence_s,
    longest_unanswered_s,
)
from planner.plan.growth import ResizeCost
from planner.train import world as worlds
from planner.train.collective_timeout import CollectiveTimeout
from planner.train.hooks import Hooks
from planner.train.lifecycle import begin
from planner.train.world import World, cpu_device

SECONDS = st.floats(1e-4, 1e4)
MAYBE_SECONDS = st.just(0.0) | SECONDS


@given(SECONDS, MAYBE_SECONDS, st.booleans())
def test_no_round_or_commit_like_the_last_ones_is_taken_for_a_hang(round_s, commit_s, is_measured):
    """Rounds may take twenty times, and commits three times as long as before. Ten minutes are never a hang."""
    limit_s = longest_silence_s(round_s=round_s, commit_s=commit_s, is_measured=is_measured)
    assert limit_s >= max(600, 20 * round_s, 3 * commit_s)
    assert limit_s >= 3600 or (is_measured and commit_s)
    unanswered_s = longest_unanswered_s(round_s=round_s, commit_s=commit_s, is_measured=is_measured)
    assert 60 <= unanswered_s <= limit_s
    assert unanswered_s == limit_s or is_measured
    assert unanswered_s >= 20 * round_s


@given(SECONDS, SECONDS, MAYBE_SECONDS, st.floats(0, 1))
def test_a_collective_is_given_up_later_than_the_controller_acts(step_s, commit_s, eval_s, share):
    """Only the controller can tell which worker hangs. The timeout of the others would hide that."""
    collective_s = longest_collective_s(step_s=step_s, commit_s=commit_s, eval_s=eval_s)
    assert collective_s >= 600 * 1.5
    if round_s := share * step_s:
        assert collective_s > longest_silence_s(round_s=round_s, commit_s=commit_s)
    assert collective_s * (1 + 1e-9) >= 20 * step_s + 3 * (commit_s + eval_s)


def test_nothing_is_set_before_a_commit_and_an_evaluation_were_seen():
    """They may take longer than any step."""
    limits = []
    timeout = CollectiveTimeout(limits.append, has_eval=True)
    for commit_s, eval_s in [(0, 0), (0, 5), (5, 0)]:
        timeout.did_step(1.0, commit_s, eval_s)
    assert limits == []
    timeout.did_step(1.0, 5, 5)
    assert limits == [1.5 * 600]


def test_it_is_set_again_only_where_it_changed_much():
    """It is always later than the elastic controller would act."""
    limits = []
    timeout = CollectiveTimeout(limits.append, has_eval=False)
    for seconds in [100.0] * 5 + [110.0] * 20 + [300.0] * 21:
        timeout.did_step(seconds, 2.0, 0.0)
    assert limits[0] == 1.5 * (2000 + 6)
    assert limits[-1] == 1.5 * (6000 + 6)
    assert len(limits) <= 3  # the median may be between the two once


def test_a_first_step_of_hours_makes_the_timeout_longer_before_anything_else_is_measured():
    """Otherwise the workers would give up before the controller, which expects such rounds from then on."""
    limits = []
    timeout = CollectiveTimeout(limits.append, has_eval=False)
    timeout.did_step(7200.0, 0.0, 0.0)
    assert limits == [1.5 * 20 * 7200]


def test_the_timeout_that_the_controller_expects_stays_until_steps_were_measured():
    """A quick first step is not typical, and a commit may be slower than any step."""
    limits = []
    timeout = CollectiveTimeout(limits.append, has_eval=False, first_s=80_000.0)
    for commit_s in (5.0, 0.0, 0.0):
        timeout.did_step(1.0, commit_s, 0.0)
    assert limits == []
    timeout.did_step(1.0, 5.0, 0.0)
    assert limits == [1.5 * 600]


@given(first_s=SECONDS, times=st.lists(SECONDS, max_size=30), commit_s=MAYBE_SECONDS, commits_after=st.integers(0, 5))
def test_the_workers_of_a_group_wait_longer_than_the_controller_does(first_s, times, commit_s, commits_after):
    """At every step of a group, whatever its steps take and whenever it commits."""
    sizes = BatchSizes(global_batch=16, max_micro=4)
    history = History(sizes=sizes, default_cost=ResizeCost(grow_s=1.0, shrink_s=1.0))
    limits = [first_collectives_s(start_limit_s(4, history))]
    group, timeout = Group.started(("a",) * 4, NotAResize(), 0.0), CollectiveTimeout(limits.append, has_eval=False)
    assert limits[-1] > silence_limit_s(group, history)
    for number, seconds in enumerate([first_s, *times]):
        seen_commit_s = commit_s if number >= commits_after else 0.0
        timeout.did_step(seconds, seen_commit_s, 0.0)
        history = history.after_commit(4, seen_commit_s)
        history = history.after_step(4, seconds) if number else history.after_first_step(4, seconds, seconds)
        assert limits[-1] > silence_limit_s(replace(group, num_steps=number + 1), history)


class Joined(Exception):
    """Stands for a world: it has the timeout that a generation joins with."""


@pytest.mark.parametrize(("expected_s", "wanted_s"), [(0.0, FIRST_COLLECTIVES_S), (9e4, 9e4)])
def test_a_generation_begins_with_what_the_controller_expects(monkeypatch, expected_s, wanted_s):
    """And with the usual timeout, if it is not known."""

    def join(_device, collectives_s):
        raise Joined(collectives_s)

    monkeypatch.setattr(World, "join", join)
    with pytest.raises(Joined) as joined:
        begin(None, cpu_device, Hooks(collectives_s=lambda: expected_s))
    assert joined.value.args == (wanted_s,)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("collectives_s", [FIRST_COLLECTIVES_S, 9e4])
def test_all_groups_of_a_world_begin_with_the_timeout_that_it_joins_with(monkeypatch, collectives_s):
    """The group for small objects is made with it. The default group has the usual one, and gets another if needed."""
    made, later = [], {}
    new_group = dist.new_group
    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options["timeout"]) or new_group(**options))
    monkeypatch.setattr(worlds, "_set_pg_timeout", lambda limit, group: later.update({group: limit}))
    world = World.join(cpu_device, collectives_s)
    limit = timedelta(seconds=collectives_s)
    assert (world.collectives_s, made) == (collectives_s, [limit])
    changed = {dist.group.WORLD, world.mesh.get_group(), world.object_group}
    assert later == ({} if collectives_s == FIRST_COLLECTIVES_S else dict.fromkeys(changed, limit))
