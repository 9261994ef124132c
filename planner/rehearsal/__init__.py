"""Trains a job through a given history of world sizes, on local processes or on Ray, for `planner verify`.

It records checksums of every tensor at every step. This room passes its hooks (`on_ray.observed_hooks`) to `dispatch`,
which does not know it.
"""
