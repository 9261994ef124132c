"""How long silence may last, and when a collective is given up."""

from hypothesis import given
from hypothesis import strategies as st

from planner.plan import longest_collective_s, longest_silence_s, longest_unanswered_s
from planner.train.collective_timeout import CollectiveTimeout

SECONDS = st.floats(1e-4, 1e4)
MAYBE_SECONDS = st.just(0.0) | SECONDS


@given(MAYBE_SECONDS, MAYBE_SECONDS)
def test_no_round_or_commit_like_the_last_ones_is_taken_for_a_hang(round_s, commit_s):
    """Rounds may take twenty times, and commits three times as long as before. Ten minutes are never a hang."""
    limit_s = longest_silence_s(round_s=round_s, commit_s=commit_s)
    assert limit_s >= max(600, 20 * round_s, 3 * commit_s)
    assert limit_s >= 3600 or (round_s and commit_s)
    unanswered_s = longest_unanswered_s(round_s=round_s, commit_s=commit_s)
    assert 60 <= unanswered_s <= limit_s
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
