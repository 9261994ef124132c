"""When a collective is given up."""

from hypothesis import given
from hypothesis import strategies as st

from planner.plan import longest_silence_s
from planner.train.patience import Patience

SECONDS = st.floats(1e-4, 1e4)


@given(SECONDS, SECONDS, SECONDS, st.booleans())
def test_no_step_commit_or_evaluation_like_the_last_ones_is_taken_for_a_hang(step_s, commit_s, eval_s, has_eval):
    """Steps may take twenty times, commits and evaluations three times what they took."""
    limit_s = longest_silence_s(step_s=step_s, commit_s=commit_s, eval_s=eval_s if has_eval else 0, has_eval=has_eval)
    assert limit_s >= 60
    assert limit_s * (1 + 1e-9) >= 20 * step_s + 3 * commit_s + (3 * eval_s if has_eval else 0)


def test_nothing_is_set_before_a_commit_and_an_evaluation_were_seen():
    """They may take longer than any step."""
    limits = []
    patience = Patience(limits.append, has_eval=True)
    for commit_s, eval_s in [(0, 0), (0, 5), (5, 0)]:
        patience.did_step(1.0, commit_s, eval_s)
    assert limits == []
    patience.did_step(1.0, 5, 5)
    assert limits == [1.5 * 60]


def test_it_is_set_again_only_where_it_changed_much():
    """And always later than whoever controls the workers would act."""
    limits = []
    patience = Patience(limits.append, has_eval=False)
    for seconds in [10.0] * 5 + [11.0] * 20 + [30.0] * 21:
        patience.did_step(seconds, 2.0, 0.0)
    assert limits[0] == 1.5 * (200 + 6)
    assert limits[-1] == 1.5 * (600 + 6)
    assert len(limits) <= 3  # on its way, the median stands between two steps once
