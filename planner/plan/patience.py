"""How long a group that is well may go without a step: hangs are told from slow steps by what steps took so far."""

# Before an evaluation and a commit were seen.
_AT_FIRST_S = 600.0
_AT_LEAST_S = 60.0


def longest_silence_s(*, step_s: float, commit_s: float, eval_s: float, has_eval: bool) -> float:
    """Seconds after which nothing but a hang explains that no step is done.

    Args:
        step_s: what a step takes; 0 if none was measured.
        commit_s: what the last commit took; 0 before the first.
        eval_s: what the last evaluation took; 0 before the first.
        has_eval: whether there will be any.
    """
    is_known = step_s > 0 and commit_s > 0 and (eval_s > 0 or not has_eval)
    if not is_known:
        return max(_AT_FIRST_S, 20 * step_s)
    return max(_AT_LEAST_S, 20 * step_s + 3 * (commit_s + eval_s))
