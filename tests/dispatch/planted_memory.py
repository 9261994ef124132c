"""Workers of a Ray run that run out of memory where a test says, each time once. Nothing of it is in the product.

A fault is an allocation of torch's that cannot be. The one in the optimizer's step leaves the weights half updated.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

from planner.dispatch.worker import worker_hooks

PLACES = ("forward", "loss", "backward", "optimizer", "evaluation")
ASKED_BYTES = 2**50
"""more than a process can address, whatever memory there is"""


def plant(folder, faults):
    """Faults to come: (step, place, rank) each."""
    (Path(folder) / "faults.json").write_text(json.dumps(faults))


def raised(folder):
    """Numbers of the faults that were raised, ascending."""
    return sorted(int(file.name.removeprefix("raised")) for file in Path(folder).glob("raised*"))


class Planter:
    """The faults of one worker."""

    def __init__(self, folder):
        import torch.distributed as dist

        self.folder, self.rank, self.step = Path(folder), dist.get_rank(), 0
        self.faults = json.loads((self.folder / "faults.json").read_text())

    def at(self, place, step):
        """Ask for too much if this is the place and the step of a fault that was not raised yet."""
        import torch

        for number, (fault_step, fault_place, rank) in enumerate(self.faults):
            if (fault_step, fault_place, rank) == (step, place, self.rank) and self._is_first(number):
                torch.empty(ASKED_BYTES, dtype=torch.uint8)

    def _is_first(self, number):
        try:
            os.close(os.open(self.folder / f"raised{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def in_model(self, model):
        """Put the faults of forward, loss, backward and evaluation into a model."""
        from planner.train.models import head

        inner = [module for module in model.modules() if not [*module.children()]]
        layer = inner[len(inner) // 2]
        layer.register_forward_pre_hook(lambda *_: self.at("forward" if model.training else "evaluation", self.step))
        layer.register_forward_hook(lambda _layer, _inputs, output: self._in_backward(output))
        plain = head._LogProbSum.forward

        def forward(*arguments):
            if model.training:
                self.at("loss", self.step)
            return plain(*arguments)

        head._LogProbSum.forward = staticmethod(forward)

    def _in_backward(self, output):
        if output.requires_grad:
            output.register_hook(lambda _gradient: self.at("backward", self.step))

    def in_optimizer(self, step, optimizer):
        """Half of the weights are changed when it fails."""
        plain = optimizer.step

        def half(*arguments, **options):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            kept = [parameter.detach().clone() for parameter in parameters]
            for parameter in parameters[::2]:
                parameter.data.mul_(0.5)
            self.at("optimizer", step)
            for parameter, before in zip(parameters, kept, strict=True):
                parameter.data.copy_(before)
            optimizer.step = plain
            return plain(*arguments, **options)

        optimizer.step = half


def planted_hooks(folder, launch):
    """A worker's usual hooks, with the faults that are planted in a folder."""
    hooks, planter = worker_hooks(launch), Planter(folder)

    def should_stop(step):
        planter.step = step
        return hooks.should_stop(step)

    return replace(
        hooks,
        should_stop=should_stop,
        begin=planter.in_model,
        observe=lambda step, state, _work: planter.in_optimizer(step, state.optimizer),
    )
