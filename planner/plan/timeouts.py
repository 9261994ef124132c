"""Timeouts: how long a group of workers may make no progress before it counts as hung.

Progress is any unit of work of any worker: a round computed, rows loaded, bytes read or written. A step may take any
time. A round at a size that was not measured yet is expected from the plan's cost (`planner.elastic.history`).
"""

# While no step or no commit was measured. A large model takes up to half an hour to compile and to upload first, and a
# storage client may buffer bytes until it closes a file. A shorter limit would end the same work again and again.
_UNMEASURED_S = 3600.0
_AT_LEAST_S = 600.0
_ROUNDS = 20
_COMMITS = 3
# A worker whose process does not answer is likely to be stopped for good.
_UNANSWERED_AT_LEAST_S = 60.0
# Collectives wait longer than the controller by this factor. The controller finds a hang first and names the worker.
_COLLECTIVE_FACTOR = 1.5

FIRST_ROUND_S = _UNMEASURED_S / _ROUNDS
"""seconds that the longest round of a launch's first group is expected to take, while nothing is known of the run"""
FIRST_COLLECTIVES_S = _COLLECTIVE_FACTOR * _UNMEASURED_S
"""timeout of collectives in seconds before anything was measured"""


def longest_silence_s(*, round_s: float, commit_s: float, is_measured: bool = True) -> float:
    """Seconds without progress after which a group is hung: `max(10 min, 20 round_s, 3 commit_s)`.

    At least an hour until this launch has measured a step and a commit.

    Args:
        round_s: seconds of the longest round expected at the group's size, above 0.
        commit_s: seconds of a commit, 0 before the first. A commit may be silent: storage may buffer bytes and write
            them at the end.
        is_measured: whether `round_s` follows from typical steps of this launch. Otherwise it can only make the limit
            longer.
    """
    at_least_s = _AT_LEAST_S if is_measured and commit_s > 0 else _UNMEASURED_S
    return max(at_least_s, _ROUNDS * round_s, _COMMITS * commit_s)


def longest_unanswered_s(*, round_s: float, commit_s: float, is_measured: bool = True) -> float:
    """Seconds without progress after which a group is hung if a worker does not answer: `max(1 min, 20 round_s)`.

    Never longer than `longest_silence_s`, and equal to it until this launch has measured a step.

    Args:
        round_s: seconds of the longest round expected at the group's size, above 0.
        commit_s: seconds of a commit, 0 before the first.
        is_measured: whether `round_s` follows from typical steps of this launch.
    """
    silence_s = longest_silence_s(round_s=round_s, commit_s=commit_s, is_measured=is_measured)
    return min(silence_s, max(_UNANSWERED_AT_LEAST_S, _ROUNDS * round_s)) if is_measured else silence_s


def first_collectives_s(silence_s: float) -> float:
    """Seconds that collectives of a new group may wait until it has measured its own steps and commits.

    Args:
        silence_s: how long the controller waits for progress before the group's first step.
    """
    return max(FIRST_COLLECTIVES_S, _COLLECTIVE_FACTOR * silence_s)


def longest_collective_s(*, step_s: float, commit_s: float, eval_s: float) -> float:
    """Seconds that a collective may wait for the slowest worker: at least 1.5 times what the controller waits.

    A collective cannot see progress, so the limit covers 20 steps, three commits and three evaluations.

    Args:
        step_s: seconds of a step.
        commit_s: seconds of the last commit, 0 before the first.
        eval_s: seconds of the last evaluation, 0 if the job has none.
    """
    return _COLLECTIVE_FACTOR * max(_AT_LEAST_S, _ROUNDS * step_s + _COMMITS * (commit_s + eval_s))
