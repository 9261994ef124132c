"""Each fault of the table in `forging.py` is asked of each verifier, in copies of one recorded run."""

import shutil

import pytest
from forging import FAULTS, PLACES, Unseen, forged, rechained, set_format, step, with_job
from verifiers import VERIFIERS, audited

from planner.base import format_versions


@pytest.fixture(scope="module")
def planted(history, tmp_path_factory, request):
    """A fault of the table, and a copy of the run that has it, for all verifiers."""
    run = shutil.copytree(history.parent, tmp_path_factory.mktemp("planted") / "copy") / "run"
    fault = FAULTS[request.param]
    fault.plant(run)
    return fault, run


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("planted", FAULTS, indirect=True)
def test_a_planted_fault_is_found(history, planted, verifier):
    """Or the verifier calls the run clean, and the table has the reason."""
    fault, run = planted
    expected = fault.found_by(verifier)
    verdict = VERIFIERS[verifier](run, history)
    if isinstance(expected, Unseen):
        assert verdict.clean, verdict.found
        return
    assert not verdict.clean
    for text in (expected,) if isinstance(expected, str) else expected:
        assert any(text in found for found in verdict.found), verdict.found


def test_every_fault_is_found_by_a_verifier():
    """A row of exceptions would say nothing."""
    unseen = [name for name, fault in FAULTS.items() if all(isinstance(fault.found_by(v), Unseen) for v in VERIFIERS)]
    assert not unseen


HARMLESS = {
    "nothing": lambda _run: None,
    "all hashes made anew": forged,
    "the job under its digest": lambda run: with_job(run, lambda _job: None),
    **{f"the format of {place}": plant(set_format(format_versions.STORED[place])) for place, plant in PLACES.items()},
}


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("way", HARMLESS)
def test_the_ways_to_plant_are_harmless(history, run, way, verifier):
    """What is found above is the change, not the forging."""
    HARMLESS[way](run)
    verdict = VERIFIERS[verifier](run, history)
    assert verdict.clean, verdict.found


@pytest.mark.parametrize("fault", ["a held step gone", "a held step sealed anew", "one letter of the data"])
def test_what_is_wrong_is_said_once(run, fault):
    """The audit has one finding."""
    FAULTS[fault].plant(run)
    [finding] = audited(run).findings
    assert FAULTS[fault].audit in finding


@pytest.mark.parametrize(("more", "counts"), [(-2, (2, 0)), (3, (0, 3))])
def test_lost_and_repeated_samples_are_counted(run, more, counts):
    """By the recorded counts."""
    rechained(step(7, samples=lambda number: number + more))(run)
    found = audited(run)
    assert (found.lost, found.repeated) == counts
