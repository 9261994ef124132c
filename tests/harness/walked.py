"""`python walked.py [--pool] MODULE ...`: load the modules, and print the examples of a property.

`--pool` leaves Hypothesis its pool of literals.
"""

import importlib
import sys

from fixed_examples import empty_the_pool, register_profiles
from hypothesis import given, settings
from hypothesis import strategies as st

register_profiles()
settings.load_profile("planner")


@given(st.integers(), st.floats(), st.text(), st.binary())
def walk(whole, real, text, raw):
    """Print what was drawn."""
    print(repr((whole, real, text, raw)))


if __name__ == "__main__":
    modules = sys.argv[1:]
    if "--pool" in modules:
        modules.remove("--pool")
    else:
        empty_the_pool()
    for module in modules:
        importlib.import_module(module)
    walk()
