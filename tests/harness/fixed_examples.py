"""Which examples Hypothesis takes: the same ones on every desk and in CI, or new ones (`make properties`)."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

EXAMPLES = 50
"""of a property, in `make test`"""
MANY = 1000
"""in `make properties`"""


def register_profiles() -> None:
    """Register `planner`, the profile of every test, and `properties`, which takes new random examples.

    Both inherit from Hypothesis' `default`. Where CI is set, Hypothesis loads its profile `ci` by itself, and a profile
    without a named parent inherits from that one.

    No deadline and no health check by speed: a shared machine stalls now and then, and speed is measured in bench/. No
    database: an example that failed becomes an `@example` in its test.
    """
    plain = settings.get_profile("default")
    settings.register_profile(
        "planner",
        plain,
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.register_profile("properties", settings.get_profile("planner"), max_examples=MANY, derandomize=False)


def empty_the_pool() -> None:
    """Take the literals of loaded modules out of the draw.

    Hypothesis (6.130 and later) sometimes draws a literal of a loaded module of the project. Which modules are loaded
    depends on the order of the tests and on the process that runs them, so even derandomized examples would differ.
    There is no setting for this. The name is private: `test_fixed_examples.py` fails if it changes its meaning.
    """
    assert callable(providers._get_local_constants), "this Hypothesis keeps its pool of literals elsewhere"
    providers._get_local_constants = lambda: providers._local_constants  # stays empty


def examples(count: int) -> settings:
    """Settings for a property that takes `count` examples in `make test`, and twenty times as many in `properties`."""
    return settings(max_examples=count * settings.default.max_examples // EXAMPLES)


def without_shrinking(count: int) -> settings:
    """As `examples`, for large values, which take long to make and to shrink."""
    phases = set(Phase) - {Phase.shrink}
    return settings(examples(count), suppress_health_check=list(HealthCheck), phases=phases)
