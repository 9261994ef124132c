"""A key twice in a file: as its system reads it. The judges are PyYAML, Python's `json` and OmegaConf themselves."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from planner.errors import PlannerError, RecipeError
from planner.recipes import CheckOptions, RecipeOptions, read_recipe
from planner.recipes.config_reader import mapping_of

CHECK = RecipeOptions(gpus=4, method="sft", is_for_job=False, needs_micro=False)
# Some come twice in most texts, the others make texts without a key twice likely, too.
NAMES = st.sampled_from(['"lr"', "lr", "beta", "a b", *(f"key{number}" for number in range(24))])
SCALARS = st.sampled_from(["1", "-2", "true", "null", "word", "'5e-7'", "[1, two]", "{x: 1}", "{x: 1, x: 2}", '"#"'])


def texts():
    """Block mappings whose keys come again and again, with sections, anchors and merge keys."""
    return mappings().map(numbered)


def numbered(lines):
    """The text of the lines, with a name of its own for each anchor. Each is opened and used like a bracket."""
    found, opened = [], []
    for number, line in enumerate(lines):
        opened += [number] if line.endswith("&m") else []
        found.append(line.replace("&m", f"&m{number}").replace("*m", f"*m{opened.pop()}" if "*m" in line else ""))
    return "\n".join(found)


@st.composite
def mappings(draw, depth=0):
    """The lines of such a mapping, each anchor with the same name."""
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        name, kind = draw(NAMES), draw(st.sampled_from(["scalar", "scalar", "section", "anchor"]))
        if kind == "scalar" or depth > 1:
            lines.append(f"{name}: {draw(SCALARS)}")
        else:
            mark = " &m" if kind == "anchor" else ""
            lines += [f"{name}:{mark}", *(f"  {line}" for line in draw(mappings(depth=depth + 1)))]
            if mark:
                lines += [f"{draw(NAMES)}:", "  <<: *m", *(f"  {line}" for line in draw(mappings(depth=depth + 1)))]
    return lines


def noted(text):
    """The mapping where the last key counts, and the notes."""
    repeats = []
    return mapping_of(text, "file", repeats), [each.note for each in repeats]


def has_repeats(text):
    """Whether a mapping of the text has a key twice, by PyYAML's own nodes."""

    def walk(node):
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if key.value != "<<"]
            return len(names) > len(set(names)) or any(walk(value) for _, value in node.value)
        return isinstance(node, yaml.SequenceNode) and any(walk(value) for value in node.value)

    return walk(yaml.compose(text, Loader=yaml.SafeLoader))


@given(texts())
def test_the_last_key_counts_as_in_pyyaml_and_each_one_is_noted(text):
    """Sections, merge keys (`<<`) and nested mappings included."""
    found, notes = noted(text)
    assert found == yaml.safe_load(text)
    assert bool(notes) == has_repeats(text)


@given(texts())
def test_a_file_of_hydra_is_read_if_and_only_if_omegaconf_reads_it(text):
    try:
        theirs = OmegaConf.to_container(OmegaConf.create(text))
    except yaml.YAMLError:
        with pytest.raises(RecipeError, match="twice, on lines"):
            mapping_of(text, "file")
    else:
        assert mapping_of(text, "file") == theirs


@given(st.lists(st.tuples(NAMES, st.sampled_from([1, 2.5, "x", None, True, [1], {"a": 1}])), min_size=1, max_size=6))
def test_the_last_key_of_a_json_object_counts_as_in_python(pairs):
    text = "{" + ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs) + "}"
    found, notes = noted(text)
    assert found == json.loads(text)
    assert len(notes) == len([name for name in dict(pairs) if sum(each == name for each, _ in pairs) > 1])


def test_a_note_has_the_lines_and_the_value_that_counts():
    """Of three or more the last two lines."""
    assert noted("lr: 1\nseed: 4\nlr: 5e-7\n")[1] == ["lr: twice, on lines 1 and 3. The last one counts (5e-7)"]
    assert noted("a:\n  b: 1\n  b: [2]\na: {c: 3}\n")[1] == [
        "b: twice, on lines 2 and 3. The last one counts",
        "a: twice, on lines 1 and 4. The last one counts",
    ]
    assert noted("a: 1\na: 2\na: 3\n")[1] == ["a: twice, on lines 2 and 3. The last one counts (3)"]
    assert noted('{"a": 1, "a": "x"}')[1] == ['a: twice. The last one counts ("x")']


TRL = "model_name_or_path: m\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 2\n"
AGAIN = "per_device_train_batch_size: 4\n"
NOTE = "per_device_train_batch_size: twice, on lines 2 and 4. The last one counts (4)"


def traps_of(recipe):
    return [trap.text for trap in recipe.traps(CheckOptions(counts=[4])) if trap.name == "a key twice"]


@pytest.mark.parametrize(
    "form", ["{}", "python sft.py --config {}", "accelerate launch --num_processes 4 run_sft.py {}"]
)
def test_a_recipe_of_trl_trains_the_last_one(form, tmp_path):
    """As the file itself, and as the file of a command."""
    file = tmp_path / "config.yaml"
    file.write_text(TRL + AGAIN)
    recipe = read_recipe(form.format(file), (), CHECK)
    assert recipe.global_batch == 32
    assert traps_of(recipe) == [f"{NOTE}."]


def test_a_key_twice_in_an_accelerate_file_is_noted_with_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\nnum_processes: 2\n")
    (tmp_path / "config.yaml").write_text(TRL)
    options = RecipeOptions(method="sft", is_for_job=False, needs_micro=False, accelerate=str(tmp_path / "a.yaml"))
    recipe = read_recipe(str(tmp_path / "config.yaml"), (), options)
    assert (recipe.gpus, recipe.global_batch) == (2, 32)
    assert traps_of(recipe) == [f"{tmp_path}/a.yaml: num_processes: twice, on lines 2 and 3. The last one counts (2)."]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "ds.json",
            '{"train_batch_size": 64, "train_batch_size": 32}',
            "found train_batch_size twice. DeepSpeed refuses",
        ),
        (
            "config.yaml",
            "batch_size: 64\ntrainer: FSDPTrainer\nlr: 1e-6\nlr: 2e-6\n",
            "found lr twice, on lines 3 and 4. DPO repository refuses such a file: keep one",
        ),
        ("config.yaml", "defaults: [_self_]\nbatch_size: 64\nbatch_size: 32\n", "batch_size twice, on lines 2 and 3"),
        ("job.yaml", "batch: {global: 64}\nname: a\nname: b\n", "name: found twice, on line 2 and line 3. Wri"),
    ],
)
def test_a_system_that_refuses_a_key_twice_is_not_guessed(name, text, says, tmp_path):
    """DeepSpeed, OmegaConf under Hydra, and planner's own jobs."""
    (tmp_path / name).write_text(text)
    with pytest.raises(PlannerError) as raised:
        read_recipe(str(tmp_path / name), (), CHECK)
    assert says in str(raised.value)


def test_a_broken_json_text_that_yaml_reads_is_noted_once():
    """Its trailing comma is no JSON."""
    assert len(noted('{"a": 1, "a": 2,}')[1]) == 1
