"""Hooks of workers whose rounds take their time. Workers import this file."""

import time
from dataclasses import replace

from planner.dispatch.worker import worker_hooks


def slow_rounds(seconds, launch):
    """Each forward pass waits first."""
    hooks = worker_hooks(launch)

    def begin(model):
        hooks.begin(model)
        model.register_forward_pre_hook(lambda *_: time.sleep(seconds))

    return replace(hooks, begin=begin)
