"""Which errors say that memory ran out, and what they say."""

import pickle

import pytest

from planner.base.memory_errors import MemoryFacts, OutOfMemory, asked_bytes, error_text, memory_error_in
from planner.errors import TrainingFailed

ON_CPU = (
    "[enforce fail at alloc_cpu.cpp:125] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)"
)
ON_CUDA = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.2 GiB is free"
)


class OutOfMemoryError(RuntimeError):
    """As torch's."""


class OfRay(Exception):
    """Ray's memory monitor has killed a task."""


def raised_from(error):
    """A `KeyError` as `raise ... from error` makes it."""
    found = KeyError("batch")
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(ON_CPU),
        OutOfMemoryError(ON_CUDA),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        raised_from(MemoryError()),
        ExceptionGroup("two", [KeyError(), OutOfMemoryError(ON_CUDA)]),
    ],
)
def test_a_lack_of_memory_is_recognized(error):
    """Of Python, of torch on the CPU and on CUDA, and where the user's code wraps it."""
    assert memory_error_in(error) is not None


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        TrainingFailed("the copy has no room: out of memory"),
        OfRay("out of memory"),
        OSError(12, "Cannot allocate memory"),
        KeyError("memory"),
    ],
)
def test_other_errors_are_not(error):
    """Nor what all workers have agreed on."""
    assert memory_error_in(error) is None


@pytest.mark.parametrize(
    ("text", "asked"), [(ON_CPU, 4096), (ON_CUDA, 5 * 2**29), ("CUDA error: out of memory", None), ("", None)]
)
def test_it_says_what_was_asked_for(text, asked):
    assert asked_bytes(text) == asked


def test_its_text_is_one_bounded_line():
    assert error_text(MemoryError()) == "MemoryError: out of memory"
    assert error_text(RuntimeError("first\nsecond")) == "first"
    assert len(error_text(RuntimeError("x" * 10_000))) <= 300


def test_an_error_that_forms_a_circle_ends():
    error = KeyError()
    error.__cause__ = error
    assert memory_error_in(error) is None


def test_it_passes_from_a_worker_to_the_controller():
    """Pickled, as Ray does."""
    facts = MemoryFacts(
        device="CPU",
        place="loss",
        max_micro=8,
        max_tokens=None,
        samples=4,
        tokens=None,
        longest=None,
        asked_bytes=None,
        error="no room",
    )
    found = pickle.loads(pickle.dumps(OutOfMemory(facts)))
    assert (found.facts, str(found)) == (facts, "no room")
