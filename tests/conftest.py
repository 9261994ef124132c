"""Settings for every test."""

from hypothesis import settings

# No deadline: a shared machine stalls now and then, and speed is measured in bench/, not here.
settings.register_profile("planner", deadline=None, max_examples=200)
settings.load_profile("planner")
