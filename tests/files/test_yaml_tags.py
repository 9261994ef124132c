"""YAML of a stranger's: whichever of our readers takes it, its tags call nothing."""

import pytest
import yaml

from planner.errors import PlannerError
from planner.files import read_job
from planner.files.cluster_file import read_cluster
from planner.recipes.read import read_recipe

TAGS = [
    "!!python/object/apply:os.system [{call}]",
    "!!python/object/apply:subprocess.check_output [[touch, {marker}]]",
    "!!python/object/new:os.system [{call}]",
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!python/object/new:type {{args: [x, !!python/tuple [], {{extend: !!python/name:exec}}], listitems: {call}}}",
]
WHOLE = {
    "the whole": "{tag}",
    "a value": "name: {tag}\nmodel: {{kind: gpt}}\nbatch: {{global: 4}}",
    "a recipe's value": "batch_size: {tag}\ntrainer: BasicTrainer\nlr: 1e-5",
    "a cluster's value": "cluster_name: {tag}\nprovider: {{type: aws}}\navailable_node_types: {{}}",
    "a second document": "kind: RayCluster\n---\n{tag}",
}


@pytest.mark.parametrize("read", [read_job, read_cluster, read_recipe])
@pytest.mark.parametrize("place", WHOLE)
def test_a_tag_calls_nothing(read, place, tmp_path):
    """One error of ours, and the marker is not there."""
    marker = tmp_path / "ran"
    for number, tag in enumerate(TAGS):
        file = tmp_path / f"{number}.yaml"
        file.write_text(WHOLE[place].format(tag=tag.format(call=f"'touch {marker}'", marker=marker)))
        with pytest.raises(PlannerError):
            read(str(file))
        assert not marker.exists(), tag


def test_the_tags_are_dangerous(tmp_path):
    """To a loader that trusts: the test above proves something."""
    marker = tmp_path / "ran"
    yaml.unsafe_load(TAGS[0].format(call=f"'touch {marker}'", marker=marker))
    assert marker.exists()
