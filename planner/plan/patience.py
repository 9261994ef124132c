"""How long a group that is well may go without a step: hangs are told from slow steps by what steps took so far."""

# Before a step, an evaluation and a commit were seen. A large model is loaded from slow storage, compiled, and first
# uploaded in half an hour; who gives it less ends it in the midst of it, again and again.
UNMEASURED_S = 3600.0
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
        return max(UNMEASURED_S, 20 * step_s)
    return max(_AT_LEAST_S, 20 * step_s + 3 * (commit_s + eval_s))
