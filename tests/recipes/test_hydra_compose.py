"""Overrides and configurations are read as Hydra 1.3 reads them. The judge is Hydra itself."""

import collections
import warnings

import hydra_judge
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra_judge import Case, case_of, of_hydra, of_planner, verdict, write

from planner.errors import RecipeError
from planner.recipes.hydra import options
from planner.recipes.hydra.compose import compose
from planner.recipes.hydra.grammar import NoOverride, parse

CASES = 160
SIGNS = {"": "CHANGE", "+": "ADD", "++": "FORCE_ADD", "~": "DEL"}


def counted(seeds, folder):
    """The verdicts on generated configurations, with the cases of those that must not be."""
    found, wrong = collections.Counter(), []
    for seed in seeds:
        case, place = case_of(seed), folder / str(seed)
        write(case, place)
        its = verdict(of_hydra(case, place), of_planner(case, place))
        found[its] += 1
        wrong += [(seed, its, case.arguments)] if its in {"differs", "hydra refuses"} else []
    return found, wrong


def test_generated_configurations_are_composed_as_hydra_composes_them(tmp_path):
    """Equal, or refused: planner takes nothing that Hydra refuses, and refuses little of what Hydra takes."""
    found, wrong = counted(range(CASES), tmp_path)
    assert wrong == []
    assert found["equal"] > 0.35 * CASES
    assert found["planner refuses"] < 0.1 * (found["equal"] + found["planner refuses"])


@pytest.mark.slow
def test_thousands_of_configurations_are_composed_as_hydra_composes_them(tmp_path):
    found, wrong = counted(range(100_000, 101_500), tmp_path)
    assert wrong == []
    assert found["planner refuses"] < 0.1 * (found["equal"] + found["planner refuses"])


def _parsed(text):
    try:
        its = parse(text)
    except NoOverride:
        return None
    return SIGNS[its.sign], its.key, its.package, its.value


def _of_hydra(parser, text):
    try:
        its = parser.parse_override(text)
        value = [its._convert_value(each) for each in its.value().list] if its.is_sweep_override() else its.value()
    except Exception:  # noqa: BLE001  it raises many kinds
        return None
    return its.type.name, its.key_or_group, its.package, value


def test_generated_overrides_are_parsed_as_hydra_parses_them():
    """Types count: `'64'` is a text, `64` a number, and `None` a text. planner alone refuses functions."""
    parser, pick = OverridesParser.create(), hydra_judge.random.Random(7)
    num_equal = 0
    for _ in range(1_500):
        key = pick.choice(("a", "a", "a.b", "g/h", "g@p", "a-b", "$a", "1", "a.0"))
        pieces = "".join(pick.choice(hydra_judge.PIECES) for _ in range(pick.randint(0, 6)))
        text = f"{pick.choice(('', '', '', '+', '++', '~'))}{key}{'=' if pick.random() < 0.9 else ''}{pieces}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs, ours = _of_hydra(parser, text), _parsed(text)
        assert repr(ours) == repr(theirs) or (ours is None and "(" in text), text
        num_equal += ours is not None
    assert num_equal > 400


# What people write, by itself. Each is compared with Hydra.

FILES = {
    "config": "defaults:\n- _self_\n- model: small\n- loss: sft\nbatch_size: 4\nlr: 5e-7\nn_examples: null\n"
    "wandb: {enabled: true, project: p}\ndatasets: [hh]\nhalf: ${batch_size}\n",
    "model/base": "name: ???\nwidth: 010\n",
    "model/small": "defaults:\n- base\nname: s\n",
    "model/large": "defaults:\n- base\n- _self_\nname: l\nwidth: 1_000\n",
    "loss/sft": "name: sft\n",
    "loss/dpo": "name: dpo\nbeta: ???\n",
    "exp/big": "# @package _global_\ndefaults:\n- override /model: large\nbatch_size: 64\n",
    "exp/none": "# @package _global_\ndefaults:\n- override /loss: null\n",
}


@pytest.mark.parametrize(
    ("arguments", "key", "value"),
    [
        ((), "model.width", 8),  # YAML's octal, as OmegaConf reads it
        (("model=large",), "model.width", 1000),
        (("batch_size=64",), "half", 64),
        (("batch_size=1_000",), "batch_size", 1000),
        (("batch_size='64'",), "batch_size", "64"),
        (("n_examples=null",), "n_examples", None),
        (("n_examples=None",), "n_examples", "None"),
        (("wandb.project=",), "wandb.project", ""),
        (("wandb.project='a b'",), "wandb.project", "a b"),
        (("wandb.project=a\\,b",), "wandb.project", "a,b"),
        (("datasets=[hh,shp]",), "datasets", ["hh", "shp"]),
        (("wandb={enabled:false}",), "wandb.enabled", False),
        (("wandb={enabled:false}",), "wandb.project", "p"),
        (("+wandb={name:x}",), "wandb.name", "x"),
        (("+seed=3",), "seed", 3),
        (("++lr=1e-6",), "lr", 1e-6),
        (("~wandb.project",), "wandb.enabled", True),
        (("~lr=5e-7",), "batch_size", 4),
        (("~loss",), "batch_size", 4),
        (("+seed=3", "seed=4"), "seed", 4),
        (("~lr", "+lr=1"), "lr", 1),
        (("loss=dpo", "loss.beta=0.1"), "loss.beta", 0.1),
        (("+exp=big",), "batch_size", 64),
        (("+exp=big",), "model.name", "l"),
        (("+exp=none",), "model.name", "s"),
        (("+model@other=large",), "other.name", "l"),
        (("hydra.run.dir=out", "hydra.job.chdir=false", "hydra/job_logging=disabled"), "batch_size", 4),
    ],
)
def test_an_override_gives_what_it_gives_in_hydra(arguments, key, value, tmp_path):
    case = Case(files=FILES, arguments=arguments)
    write(case, tmp_path)
    ours = of_planner(case, tmp_path)
    assert verdict(of_hydra(case, tmp_path), ours) == "equal"
    assert ours[key] == value
    assert type(ours[key]) is type(value)


def test_a_key_that_was_removed_is_not_there(tmp_path):
    case = Case(files=FILES, arguments=("~lr", "lr=1"))
    write(case, tmp_path)
    assert verdict(of_hydra(case, tmp_path), of_planner(case, tmp_path)) == "both refuse"


@pytest.mark.parametrize(
    "argument",
    [
        *(
            "seed=1",
            "batch_size",
            "lr=1e-6,1e-5",
            "+lr=1",
            "~seed",
            "~lr=1e-3",
            "~n_examples",
            "++loss=dpo",
            "model=null",
        ),
        *(
            "model=huge",
            "exp=big",
            "~exp",
            "model@x=large",
            "wandb={name:x}",
            "lr=a=b",
            "lr=(1)",
            "lr=a#b",
            "+loss=sft",
        ),
        *("batch_size.x=1", "datasets={a:1}", "wandb=[1]", "1=2", "lr=[1", "lr={1:2", "lr='a", "~model=large"),
    ],
)
def test_what_hydra_refuses_planner_refuses(argument, tmp_path):
    case = Case(files=FILES, arguments=(argument,))
    write(case, tmp_path)
    assert verdict(of_hydra(case, tmp_path), of_planner(case, tmp_path)) == "both refuse"


def test_a_key_twice_in_a_file_of_hydras_is_refused(tmp_path):
    """As OmegaConf refuses it."""
    case = Case(files={"config": "a: 1\na: 2\n"}, arguments=())
    write(case, tmp_path)
    assert verdict(of_hydra(case, tmp_path), of_planner(case, tmp_path)) == "both refuse"


def test_several_values_are_several_runs(tmp_path):
    write(Case(files=FILES, arguments=()), tmp_path)
    with pytest.raises(RecipeError, match="found several values, which are several runs"):
        compose({}, tmp_path, ["lr=1,2"], source="s", groups=(), env={})


@pytest.mark.parametrize("setting", ["hydra.searchpath=[file:///x]", "hydra.mode=MULTIRUN"])
def test_settings_of_hydra_that_choose_what_is_read_are_refused(setting, tmp_path):
    write(Case(files=FILES, arguments=()), tmp_path)
    with pytest.raises(RecipeError, match="planner reads one run of one folder"):
        compose({}, tmp_path, [setting], source="s", groups=(), env={})


@pytest.mark.parametrize(
    ("arguments", "name", "others"),
    [
        (("--config-name", "big", "a=1"), "big", ("a=1",)),
        (("--config-name=big", "a=1"), "big", ("a=1",)),
        (("-cn", "big", "-m", "a=1"), "big", ("a=1",)),
        (("a=1", "-cn=big"), "big", ("a=1",)),
        (("a=1", "--resolve"), None, ("a=1",)),
    ],
)
def test_hydras_own_options_are_told_from_overrides(arguments, name, others):
    """Compared with Hydra's own parser."""
    from hydra._internal.utils import get_args_parser

    made = options.read(arguments)
    theirs, _ = get_args_parser().parse_known_args(arguments)
    assert made.config_name == name == theirs.config_name
    assert made.arguments == others
    assert made.is_multirun == theirs.multirun
