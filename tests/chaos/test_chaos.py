"""A short storm with a fixed seed; `make chaos` has the long ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(3600)]
_STORM = Path(__file__).parent / "storm.py"


def storm(tmp_path, *options, **environment):
    found = tmp_path / "found.json"
    command = [sys.executable, str(_STORM), *options, "--json", str(found)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, **environment})
    assert found.exists(), done.stderr[-3000:]
    return json.loads(found.read_text()), done


def check(found, done):
    assert found["findings"] == [], done.stderr[-3000:]
    assert done.returncode == 0
    assert (found["lost"], found["repeated"]) == (0, 0)
    assert found["weights_sha256"] == found["undisturbed_sha256"]
    assert found["steps_witnessed"] >= found["steps"] > 0


@pytest.mark.slow  # two minutes; `make faults` has it
def test_a_short_storm(tmp_path):
    """Seven kinds, once each: as root with a network of its own, else without the partition."""
    kinds = (
        "controller killed",
        "notice of 1 to 30 s",
        "newest checkpoint corrupted",
        "second driver",
        "worker killed in a background write",
        "node killed",
        "partition",
    )
    only = [option for kind in kinds for option in ("--only", kind)]
    found, done = storm(tmp_path, "--once", "--seed", "1", *only)
    check(found, done)
    assert found["faults"].keys() >= {"controller killed", "node killed", "worker killed in a background write"}
    assert found["hit_a_write_in_flight"] == {"worker killed in a background write": 1}
    assert found["driver_ends"] == {}


@pytest.mark.slow  # four minutes; `make faults` has it
def test_a_storm_on_memory(tmp_path):
    """Keepers die, both copies are lost, hand-overs are cut short, and there is no room. Each fault meets its aim."""
    aims = {"both copies lost", "death during a hand-over", "host memory short"}
    only = [option for kind in sorted({*aims, "keeper killed", "node killed"}) for option in ("--only", kind)]
    found, done = storm(tmp_path, "--once", "--seed", "3", *only)
    check(found, done)
    assert found["hit_the_memory"] == dict.fromkeys(aims, 1)
    assert found["resumes"]["memory"] > 0
    assert found["resumes"]["storage"] > 0
    assert found["driver_ends"] == {}


@pytest.mark.slow
def test_a_storm_where_nothing_can_be_isolated(tmp_path):
    """All nodes on 127.0.0.1, as for a user without rights."""
    only = [option for kind in ("notice of 1 to 30 s", "node killed", "worker killed") for option in ("--only", kind)]
    found, done = storm(tmp_path, "--once", "--seed", "2", *only, PLANNER_CHAOS_INSIDE="shared")
    check(found, done)
    disks = {"disk full", "disk frozen", "disk slow", "disk full in a background write"}
    assert set(found["not_tried_here"]) == {"partition", *disks, "disk frozen in a background write"}
