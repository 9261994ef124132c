"""Randomness in the steps of a rehearsed job: dropout is turned off, and other draws are noticed.

Before each micro-batch planner seeds torch's generator by the position of its first sample. Masks for the same samples
are others if the samples are cut into other micro-batches, as `batch.equality: balanced` does at another world size.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from planner.train import optimizer_step

GENERATORS = ("torch", "random", "numpy")
"""the generators that are watched: torch's, Python's and numpy's"""

# Functions with dropout, and the position of the probability among their arguments.
_IN_BOTH = ("dropout", "alpha_dropout", "feature_alpha_dropout")
_FUNCTIONS: Final = {
    **{(functional, name): 1 for name in (*_IN_BOTH, "dropout1d", "dropout2d", "dropout3d")},
    **{(torch, name): 1 for name in (*_IN_BOTH, "feature_dropout")},
    (functional, "scaled_dot_product_attention"): 4,
}
_plain: dict[tuple[Any, str], Callable[..., Any]] = {}
"""what was replaced in this process. Empty while dropout is on"""
_called: dict[str, float] = {}
"""function -> the largest probability that it was called with while dropout was off"""


class WithoutDropout:
    """Turns dropout off in a worker's process. `modules` are those in which it was active, with its probability."""

    def __init__(self) -> None:
        self._modules = dict[str, float]()

    def begin(self, model: nn.Module) -> None:
        """Set the probabilities of the model's modules to zero. A `Hooks.begin`."""
        for name, module in model.named_modules():
            found = [(key, float(value)) for key, value in vars(module).items() if _is_dropout(module, key, value)]
            for key, probability in found:
                setattr(module, key, 0.0)
                if module.training:
                    self._modules[f"{name} ({_class_name(module)})" if name else _class_name(module)] = probability

    @property
    def found(self) -> dict[str, float]:
        """Module or function -> the probability with which it would have dropped values."""
        return {**self._modules, **_called}


@contextmanager
def other_numbers() -> Iterator[None]:
    """A context in which steps in this process draw other numbers than in a run. First weights stay the same."""
    ours, torchs = optimizer_step.seed_randomness, torch.manual_seed

    def others(seed: int) -> torch.Generator:
        return torchs(int(seed) + 1)

    def seed_others(seed: int, position: int) -> None:
        ours(seed + 1, position)
        torch.manual_seed = others  # a step of the user's own may seed, too

    optimizer_step.seed_randomness = seed_others
    try:
        yield
    finally:
        optimizer_step.seed_randomness, torch.manual_seed = ours, torchs


@contextmanager
def functions_without_dropout() -> Iterator[None]:
    """A context in which torch's functions drop nothing, in all threads of this process."""
    turn_off_functions()
    try:
        yield
    finally:
        for (place, name), plain in _plain.items():
            setattr(place, name, plain)
        _plain.clear()


def turn_off_functions() -> None:
    """Let torch's functions drop nothing in this process. Calling it again changes nothing."""
    if _plain:
        return
    _called.clear()
    for (place, name), position in _FUNCTIONS.items():
        _plain[place, name] = getattr(place, name)
        setattr(place, name, _never_dropping(getattr(place, name), name, position))


def _never_dropping(plain: Callable[..., Any], name: str, position: int) -> Callable[..., Any]:
    """The function with a probability of zero."""
    keyword = "dropout_p" if name == "scaled_dot_product_attention" else "p"

    @wraps(plain)
    def function(*arguments: Any, **named: Any) -> Any:
        default = 0.0 if keyword == "dropout_p" else 0.5
        given = arguments[position] if len(arguments) > position else named.get(keyword, default)
        is_training = named.get("training", arguments[2] if position == 1 and len(arguments) > 2 else True)
        if given and is_training and not torch.compiler.is_compiling():
            _called[f"functional.{name}"] = max(given, _called.get(f"functional.{name}", 0.0))
        if len(arguments) > position:
            return plain(*arguments[:position], 0.0, *arguments[position + 1 :], **named)
        return plain(*arguments, **{**named, keyword: 0.0})

    return function


def _is_dropout(module: nn.Module, key: str, value: object) -> bool:
    """Whether an attribute of a module is a probability to drop something: `p` of `Dropout`, `dropout` of `LSTM`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        return False
    if key == "p":
        return _class_name(module).endswith(("Dropout", "StochasticDepth"))
    return "drop" in key.lower() and isinstance(value, float)  # `drop_first = 1` is a count


def _class_name(module: nn.Module) -> str:
    """The class of a module before FSDP gave it another one."""
    return type(module).__name__.removeprefix("FSDP")


class Draws:
    """Notices which generators were used since a micro-batch began, or since the last call."""

    def __init__(self) -> None:
        self._states = _other_states()

    def __call__(self) -> list[int]:
        """1 for each of `GENERATORS` that was used, else 0. Call it on every worker after a step's backward passes."""
        before, self._states = self._states, _other_states()
        return [int(_torch_drew()), *(int(a != b) for a, b in zip(before, self._states, strict=True))]


def _torch_drew() -> bool:
    """Whether torch drew a number since its generator was seeded, which planner does before every micro-batch."""
    seeded = torch.Generator().manual_seed(torch.initial_seed()).get_state()
    if not torch.equal(seeded, torch.default_generator.get_state()):
        return True
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return False
    return bool(torch.cuda.default_generators[torch.cuda.current_device()].get_offset())


def _other_states() -> tuple[object, object]:
    """The states of Python's generator and of numpy's global one."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate(), None
    _, keys, position, *_ = numpy.random.get_state()
    return random.getstate(), (keys.tobytes(), position)
