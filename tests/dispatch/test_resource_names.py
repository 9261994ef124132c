"""Names of `workers.resources`: what planner refuses is what Ray does not take, and Ray is the judge."""

import string

import pytest
from pydantic import ValidationError

from planner.job import Workers
from planner.job.resource_names import OTHER_ACCELERATORS, hint, refusal

pytestmark = pytest.mark.usefixtures("ray_environment")

# Names that Ray's Python code takes. Its C++ code ends the driver, starts no node, finds no place or starts no actor.
# One cluster showed each of them (Ray 2.60).
_ENDS_LATER = ["", "a\nb", "a,b", "ä", "slot_group_1", "CPU_group_abc", "x_group_0_abc", "node:127.0.0.1"]
_TAKEN = ["spot-node", "a b", 'a"b=:/\\', "accelerator_type:A100", "TPU-v4-8-head", "tpu", "gpu", "my_group", "1"]
# An actor in a placement group started with each of these (Ray 2.60). Ray's own names end in hexadecimal digits.
_TAKEN += ["team_group_red", "my_group_x", "x_group_", "_group_", "x_group_1_red", "x_group_0-a"]


def ray_refuses(name):
    """Whether Ray's own checks of a node, of an actor or of Ray Train refuse a custom resource of this name."""
    from ray._common.utils import resources_from_ray_options
    from ray._private.parameter import RayParams
    from ray.train import ScalingConfig

    checks = [
        lambda: RayParams(resources={name: 1}),
        lambda: resources_from_ray_options({"resources": {name: 1}}),
        lambda: ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1, name: 1}),
    ]
    return any(raises(check) for check in checks)


def raises(check):
    try:
        check()
    except (AssertionError, ValueError):
        return True
    return False


def test_every_accelerator_that_ray_knows_is_refused_with_its_place():
    """A new accelerator of Ray fails here: add it to `OTHER_ACCELERATORS`."""
    from ray._private.accelerators import get_all_accelerator_resource_names
    from ray._private.ray_constants import DEFAULT_RESOURCES

    assert get_all_accelerator_resource_names() - {"GPU"} == OTHER_ACCELERATORS
    for name in (*DEFAULT_RESOURCES, *OTHER_ACCELERATORS):
        assert refusal(name), name
    assert "workers.cpus" in refusal("CPU")
    assert all("workers.gpus" in refusal(name) for name in ("GPU", *OTHER_ACCELERATORS))


def test_what_rays_own_checks_refuse_is_refused_before_a_start():
    """These names gave a traceback, or three starts and the advice that the machine is busy."""
    names = ["CPU", "GPU", "memory", "object_store_memory", "bundle", "TPU"]
    assert [name for name in names if not ray_refuses(name)] == []
    assert [name for name in names if not refusal(name)] == []


def test_what_planner_takes_is_taken_by_rays_own_checks():
    """Every printable character, and names that look special. An accelerator's type is a resource of its nodes."""
    names = [*_TAKEN, *(f"a{char}b" for char in string.printable)]
    taken = [name for name in names if not refusal(name)]
    assert set(_TAKEN) < set(taken)
    assert [name for name in taken if ray_refuses(name) or not name.isascii()] == []


@pytest.mark.parametrize("name", _ENDS_LATER)
def test_names_that_end_in_rays_c_code_are_refused(name):
    """The advice says what to write."""
    assert ". Write " in refusal(name) or ". Remove " in refusal(name)


@pytest.mark.parametrize("name", ["CPU", "TPU", "memory", "a,b", ""])
def test_the_job_refuses_such_a_name_and_says_why(name):
    with pytest.raises(ValidationError) as caught:
        Workers(resources={name: 1.0})
    assert [str(error["ctx"]["error"]) for error in caught.value.errors()] == [refusal(name)]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gpu", "GPUs belong in workers.gpus"),
        ("nvidia.com/gpu", "GPUs belong in workers.gpus"),
        ("cpus", "CPU cores belong in workers.cpus"),
        ("tpu", "TPU names an accelerator"),
        ("Memory", "planner reserves no memory for a worker"),
        ("GPU", ""),  # it is refused
        ("gpu_slot", ""),
        ("fast_disk", ""),
    ],
)
def test_a_name_that_probably_means_another_resource_has_a_hint(name, says):
    """Ray takes it, and a cluster may have it, so it is no mistake."""
    assert hint(name).startswith(says)
    assert bool(hint(name)) == bool(says)
