"""A job trained through a given history of world sizes, by local processes or on Ray: for `planner verify`.

Every tensor of every step is observed. The room stands above `dispatch`, which knows nothing of it: it hands its hooks
to the workers (`on_ray.observed_hooks`).
"""
