"""Keepers on a real Ray cluster: each node has one, it is found again, and none outlives its launch."""

import os
from pathlib import Path

import pytest
from live_runs import notes, run_of
from resized_run import KEY

from planner.dispatch.keepers import Published

pytestmark = pytest.mark.ray


def test_each_node_has_a_keeper_that_serves_only_its_launch(resized):
    """Under one address, and with room for a copy."""
    assert resized.acts_done == 3
    keepers = resized.keepers
    assert {address.node for address in keepers.at_three} == keepers.named == resized.nodes
    assert len({(address.host, address.port) for address in keepers.at_three}) == 3
    assert [copy.key for copy in keepers.kept] == [KEY] * 3
    assert all(copy.pieces[0].digest for copy in keepers.kept)
    assert len(keepers.refused) == 1


def test_another_controller_finds_the_same_keepers(resized):
    """By name. What they hold is still there."""
    assert set(resized.keepers.again.values()) == set(resized.keepers.at_three)
    assert resized.keepers.holds


def test_a_node_with_notice_loses_its_keeper_when_the_others_train(resized):
    """Until then it keeps the node alive. Then Ray ends the node."""
    assert resized.acts_done == 3
    assert resized.keepers.after_the_notice == resized.nodes - {resized.gone}


def test_the_stop_before_the_node_goes_is_asked_for_in_memory(resized):
    """The ledger says what the workers were told."""
    assert resized.acts_done == 3
    told = " ".join(notes(resized.job))
    assert "all workers finish their step, then hand it over in memory" in told


def test_no_keeper_outlives_its_launch(resized):
    """Ctrl-C ends them with the workers."""
    assert resized.acts_done == 3
    assert resized.keepers.after_the_end == set()
    assert resized.keepers.published_at_the_end == Published()


def test_the_secret_is_nowhere_in_the_run_folder(resized):
    """Neither in a file nor in a name."""
    assert run_of(resized.job).commits()
    secret = resized.launch.keeper_secret
    assert len(secret) == 64
    for root, folders, files in os.walk(resized.job.run_path):
        for name in (*folders, *files):
            assert secret not in name
        for name in files:
            assert secret.encode() not in (Path(root) / name).read_bytes()
