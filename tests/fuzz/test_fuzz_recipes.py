"""Some hundred random recipes of each system, with a fixed seed; `make fuzz` goes on for longer."""

import time
from dataclasses import replace

import fuzz_recipes
import pytest

CASES, SEED = 120, 1
by_system = pytest.mark.parametrize("system", list(fuzz_recipes.pools().POOLS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("recipes")
    fuzz_recipes.pools().write_deepspeed(place)
    return place


def counted(system, folder, cases=CASES):
    return fuzz_recipes.cases(system, SEED, folder, count=cases, until_s=time.monotonic() + 600)[0]


@by_system
def test_a_random_recipe_trains_what_its_judge_computes_or_is_refused(system, folder):
    counts = counted(system, folder)
    assert (counts["wrong"], counts["tracebacks"]) == (0, 0)
    assert counts["verdicts"] > CASES / 4
    assert min(counts["jobs"], counts["own loops"]) > CASES / 50


@by_system
def test_a_wrong_batch_is_found(system, folder, monkeypatch):
    pools = fuzz_recipes.pools().POOLS
    of_judge = pools[system].batch
    monkeypatch.setitem(pools, system, replace(pools[system], batch=lambda *asked: of_judge(*asked) + 1))
    assert counted(system, folder, cases=20)["wrong"] > 0


def test_a_case_is_the_same_each_time():
    one, again, other = (fuzz_recipes.made("axolotl", 7, number) for number in (3, 3, 4))
    assert one == again != other
