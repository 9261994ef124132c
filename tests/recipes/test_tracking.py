"""`convert` carries trackers from recipes to jobs and back. What a system cannot express is listed."""

import json
import re
from pathlib import Path

import pytest
import yaml
from fixed_examples import without_shrinking
from hypothesis import assume, given
from hypothesis import strategies as st
from plugin_package import install
from recipes import rows

from planner.errors import RecipeError
from planner.files import parse_job
from planner.job import Job
from planner.recipes import RecipeOptions, job_of, read_recipe, rewrite
from planner.recipes.rendering import tracker_values
from planner.recipes.trackers import GROUP, NO_SUCH_TRACKER

IDS = [row["id"] for row in rows()]
OWN = {"DPO repo": "dpo", "HALOs": "halos", "alignment-handbook": "trl"}
PROJECTS = {"DPO repo": "direct-preference-optimization", "HALOs": "halos", "alignment-handbook": "huggingface"}
TRL = "model_name_or_path: org/m\nper_device_train_batch_size: 8\nlearning_rate: 1e-6\n"
SFT = "accelerate launch --num_processes 2 sft.py --model_name_or_path m"
DPO = "python -u train.py model=pythia69 datasets=[hh] loss=sft exp_name=Mine trainer=FSDPTrainer"
HALOS = (
    "accelerate launch --num_processes 2 launch.py loss=sft model=llama train_datasets=[a] test_datasets=[a] "
    "exp_name=Mine ++model.name_or_path=m ++lr=1e-6"
)
JOB = {
    "name": "mine",
    "model": {"kind": "hf", "path": "org/m", "context": 64},
    "data": {"kind": "chat", "path": "rows"},
    "objective": {"kind": "sft"},
    "batch": {"global": 64, "max_micro": 8},
    "train": {"steps": 9, "optimizer": {"kind": "adamw", "lr": 1e-6}},
}
# Both have one run name for all trackers, so the names of a job are the same here.
texts = st.text("abcXYZ019 _-./'\"#&;|<>()*!?~:,@%", min_size=1, max_size=9).filter(lambda text: text == text.strip())
maybe = st.just("") | texts
tags = st.lists(texts.filter(lambda text: "," not in text), max_size=3)
wandb = st.fixed_dictionaries(
    {"kind": st.just("wandb"), "project": maybe, "entity": maybe, "group": maybe, "tags": tags},
    optional={"mode": st.sampled_from(["online", "offline"])},
)
tensorboard = st.fixed_dictionaries({"kind": st.just("tensorboard"), "folder": maybe})
mlflow = st.fixed_dictionaries(
    {"kind": st.just("mlflow"), "uri": st.sampled_from(["", "http://host:5000", "file:/a b"]), "experiment": maybe}
)
trackio = st.fixed_dictionaries({"kind": st.just("trackio"), "project": maybe, "space": maybe})
jsonl = st.fixed_dictionaries({"kind": st.just("jsonl"), "path": maybe})


def read(recipe):
    halos = "total" if recipe.system == "HALOs" else None
    gpus = None if recipe.system == "HALOs" else recipe.gpus
    return read_recipe(recipe.path, recipe.arguments, RecipeOptions(gpus=gpus, halos_batch=halos))


def of_trl(tmp_path, text, *arguments, env=None):
    """The draft of a TRL recipe with more lines."""
    file = tmp_path / "recipe.yaml"
    file.write_text(TRL + text)
    return read_recipe(str(file), arguments, RecipeOptions(gpus=2, method="sft", env=env or {})).draft


def tracked(draft):
    """The trackers of a draft, by kind."""
    found = draft.job.get("tracking", [])
    return {each["kind"]: each for each in ([found] if isinstance(found, dict) else found)}


def told(draft):
    """Every note of a draft as `key: text`."""
    notes = [*draft.carried, *draft.derived, *draft.dropped]
    return "\n".join([*(f"{note.key}: {note.text}" for note in notes), *map(str, draft.to_do)])


def job_with(*trackers):
    return Job.model_validate({**JOB, "tracking": list(trackers)})


def converted(job, target, folder):
    """What to type in another system, with its files in `folder`."""
    file = Path(folder, "job.yaml")
    file.write_text(yaml.safe_dump(json.loads(job.model_dump_json(by_alias=True))))
    made = rewrite(read_recipe(str(file)), target, 2)
    if target == "trl" and made.file:
        Path(folder, "trackers.yaml").write_text(made.file)
    return made


def again(command, folder):
    """The job that `convert` makes of a command in `folder`."""
    script = Path(folder, "run.sh")
    script.write_text(command)
    halos = "total" if "launch.py" in command else None
    return job_of(read_recipe(str(script), (), RecipeOptions(max_micro=8, halos_batch=halos)))[0]


def effective(job):
    """The trackers with the values that empty ones stand for."""
    named = {"project": job.name, "name": job.name, "experiment": job.name}
    filled = ({key: value or named.get(key, value) for key, value in its.model_dump().items()} for its in job.tracking)
    return sorted(filled, key=lambda tracker: tracker["kind"])


# -- the shipped recipes


@pytest.mark.parametrize("name", IDS)
def test_each_tracker_of_a_shipped_recipe_is_in_its_job(shipped, name):
    """wandb is on by default in the DPO repository and in HALOs. A TRL recipe names its trackers."""
    recipe = shipped[name]
    job, text = job_of(read(recipe))
    assert [tracker.kind for tracker in job.tracking] == list(recipe.report_to if recipe.is_trl else ("wandb",))
    assert parse_job(text).tracking == job.tracking
    assert {its.project for its in job.tracking if its.kind == "wandb"} <= {PROJECTS[recipe.system]}


@pytest.mark.parametrize("name", IDS)
def test_each_tracker_of_a_shipped_recipe_comes_back(shipped, name, tmp_path):
    """The recipe's job, with an objective that all systems have, in the words of its own system and read again."""
    found = job_of(read(shipped[name]))[0]
    job = Job.model_validate({**JOB, "name": found.name, "tracking": [its.model_dump() for its in found.tracking]})
    made = converted(job, OWN[shipped[name].system], tmp_path)
    assert "tracking." not in " ".join(map(str, made.unsaid))
    assert effective(again(made.command, tmp_path)) == effective(job)


# -- TRL


def test_every_setting_of_a_trl_recipe_is_carried(tmp_path):
    text = (
        "report_to: [wandb, tensorboard, mlflow, trackio]\nrun_name: My Run\nlogging_dir: logs\nproject: p\n"
        "trackio_space_id: me/space\nwandb_project: w\nwandb_entity: team\nwandb_run_group: g\n"
    )
    env = {
        "WANDB_TAGS": "a, b",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "http://h",
        "MLFLOW_EXPERIMENT_NAME": "e",
    }
    assert list(tracked(of_trl(tmp_path, text, env=env)).values()) == [
        {
            "kind": "wandb", "project": "w", "entity": "team", "group": "g", "name": "My Run", "tags": ["a", "b"],
            "mode": "offline",
        },
        {"kind": "tensorboard", "folder": "logs"},
        {"kind": "mlflow", "uri": "http://h", "experiment": "e", "name": "My Run"},
        {"kind": "trackio", "project": "p", "name": "My Run", "space": "me/space"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kinds", "said"),
    [
        ("", [], "all installed trackers in transformers 4, none in 5"),
        ("report_to: null\n", [], "report_to is not set"),
        ("report_to: none\n", [], "tracking none: report_to none"),
        ("report_to: []\n", [], "tracking none: report_to is empty"),
        ("report_to: wandb\n", ["wandb"], "report_to: tracking: wandb"),
        ("report_to: all\n", ["tensorboard"], "all trackers that are installed. The job has tensorboard"),
        ("report_to: [all]\nwandb_project: p\n", ["tensorboard", "wandb"], "The job has tensorboard and wandb"),
        ("wandb_project: p\n", ["wandb"], "tracking wandb: report_to is not set, but wandb_project is"),
        ("report_to: [comet_ml, wandb]\n", ["wandb"], f"report_to: comet_ml: {NO_SUCH_TRACKER}"),
        ("report_to: none\nwandb_project: p\n", [], "wandb_project: only wandb reads it"),
        ("report_to: wandb\nproject: p\nlogging_dir: d\n", ["wandb"], "logging_dir: only tensorboard reads it"),
        ("report_to: trackio\n", ["trackio"], "transformers 4.57 sends to a public Space"),
        ("report_to: wandb\nlogging_steps: 5\n", ["wandb"], "logging_steps: planner records and tracks every step"),
    ],
)
def test_report_to_decides_and_what_it_leaves_open_is_said(tmp_path, text, kinds, said):
    draft = of_trl(tmp_path, text)
    assert list(tracked(draft)) == kinds
    assert said in told(draft)


def test_none_on_a_command_line_is_no_missing_value(tmp_path):
    """argparse takes these as texts, so `none` turns trackers off and `007` stays as it is."""
    assert tracked(of_trl(tmp_path, "report_to: wandb\n", "--report_to", "none")) == {}
    named = tracked(of_trl(tmp_path, "report_to: wandb\n", "--run_name=007", "--wandb_project", "1e5"))
    assert (named["wandb"]["project"], named["wandb"].get("name", "007")) == ("1e5", "007")


def test_variables_of_the_command_are_read_and_its_keys_win():
    command = f"export WANDB_PROJECT=a\nexport WANDB_ENTITY='my team'\nWANDB_TAGS=x,y {SFT} --report_to wandb"
    found = tracked(read_recipe(command).draft)["wandb"]
    assert found == {"kind": "wandb", "project": "a", "entity": "my team", "tags": ["x", "y"]}
    draft = read_recipe(f"{command} --wandb_project b").draft
    assert tracked(draft)["wandb"]["project"] == "b"
    assert "WANDB_PROJECT: wandb_project replaces it" in told(draft)
    env = RecipeOptions(env={"WANDB_PROJECT": "c"})
    assert tracked(read_recipe(command, (), env).draft)["wandb"]["project"] == "c"


def test_variables_in_trls_file_are_read(tmp_path):
    draft = of_trl(tmp_path, "report_to: wandb\nenv:\n  WANDB_PROJECT: p\n  OMP_NUM_THREADS: 4\n")
    assert tracked(draft)["wandb"]["project"] == "p"
    assert "env.OMP_NUM_THREADS: an environment variable" in told(draft)
    assert told(draft).count("env.WANDB_PROJECT") == 1


@pytest.mark.parametrize("off", ["WANDB_MODE=disabled", "WANDB_DISABLED=true"])
def test_a_variable_turns_wandb_off(off):
    draft = read_recipe(f"{off} {SFT} --report_to wandb --wandb_project p").draft
    assert tracked(draft) == {}
    assert f"wandb: {off.partition('=')[0]} turns it off" in told(draft)


def test_secrets_stay_out_of_the_job():
    variables = "WANDB_API_KEY=0123abc MLFLOW_TRACKING_URI=http://me:0123abc@host"
    for tracker in ("wandb", "mlflow"):
        found = read_recipe(f"{variables} {SFT} --report_to {tracker}")
        assert "0123abc" not in job_of(found)[1] + told(found.draft)
        assert "WANDB_API_KEY: planner writes no secrets" in told(found.draft)


def test_a_value_that_is_not_known_is_listed():
    draft = read_recipe(f"{SFT} --report_to wandb --wandb_project $NAME --run_name $RUN").draft
    assert tracked(draft) == {"wandb": {"kind": "wandb"}}
    assert "wandb_project: $NAME (a shell variable that is not set): write tracking.wandb.project" in told(draft)
    assert "report_to: $TO" in told(read_recipe(f"{SFT} --report_to $TO").draft)


def test_a_list_is_no_name(tmp_path):
    with pytest.raises(RecipeError, match=r"wandb_project: found a list of 2\. Write a text"):
        of_trl(tmp_path, "report_to: wandb\nwandb_project: [a, b]\n")


def test_a_tracker_of_an_installed_package_is_named(tmp_path, monkeypatch):
    """Its settings are its package's own, so they are to do."""
    install(tmp_path, GROUP, {"comet_ml": "planner_comet:TRACKER"}, {})
    monkeypatch.syspath_prepend(str(tmp_path))
    draft = of_trl(tmp_path, "report_to: [comet_ml, clearml]\n")
    assert tracked(draft) == {"comet_ml": {"kind": "comet_ml"}}
    assert "tracking.comet_ml: its package is not planner's" in told(draft)
    assert f"report_to: clearml: {NO_SUCH_TRACKER}" in told(draft)


def test_a_loop_of_ones_own_keeps_its_trackers(tmp_path):
    assert list(tracked(of_trl(tmp_path, "report_to: wandb\nloss_type: dft\n"))) == ["wandb"]


# -- Hydra


@pytest.mark.parametrize(("command", "title"), [(DPO, "the DPO repository"), (HALOS, "HALOs")])
def test_a_default_that_is_on_becomes_a_tracker(command, title):
    draft = read_recipe(command, (), RecipeOptions(gpus=2)).draft
    project = "halos" if title == "HALOs" else "direct-preference-optimization"
    assert tracked(draft)["wandb"] == {"kind": "wandb", "project": project, "name": "Mine"}
    assert f"wandb.enabled is true by default in {title}" in told(draft)
    assert f"the x axis of wandb: optimizer steps in planner, examples in {title}" in told(draft)


def test_settings_of_hydra_are_carried():
    arguments = ["++wandb.project=p", "++wandb.entity=null", "++wandb.enabled=true"]
    draft = read_recipe(f"WANDB_RUN_GROUP=g WANDB_PROJECT=other {HALOS}", arguments).draft
    assert tracked(draft)["wandb"] == {"kind": "wandb", "project": "p", "name": "Mine", "group": "g"}
    assert "WANDB_PROJECT: wandb.project replaces it" in told(draft)
    assert "wandb.enabled: tracking: wandb" in told(draft)


@pytest.mark.parametrize(
    ("command", "arguments", "is_on"),
    [
        (DPO, ["wandb.enabled=false"], False),
        (DPO, ["debug=true"], False),
        (HALOS, ["wandb.enabled=false", "wandb.project=p"], False),
        # launch.py reads `debug` only where it saves.
        (HALOS, ["++debug=true"], True),
        (f"WANDB_MODE=disabled {HALOS}", [], False),
        (f"WANDB_DISABLED=true {HALOS}", [], True),
    ],
)
def test_what_turns_wandb_off_there(command, arguments, is_on):
    draft = read_recipe(command, arguments, RecipeOptions(gpus=2)).draft
    assert bool(tracked(draft)) == is_on
    assert ("turns wandb off" in told(draft)) != is_on


# -- DeepSpeed


def test_monitors_of_deepspeed_are_carried(tmp_path):
    monitors = {
        "wandb": {"enabled": True, "team": "t", "group": "g", "project": "p"},
        "tensorboard": {"enabled": True, "output_path": "logs/", "job_name": "a"},
        "csv_monitor": {"enabled": True, "output_path": "csv"},
        "comet": {"enabled": True, "project": "c"},
    }
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, **monitors}))
    found = read_recipe(str(file), (), RecipeOptions(gpus=2))
    assert list(tracked(found.draft).values()) == [
        {"kind": "wandb", "project": "p", "entity": "t", "group": "g"},
        {"kind": "tensorboard", "folder": "logs/a"},
    ]
    assert f"comet.enabled: {NO_SUCH_TRACKER}" in told(found.draft)
    assert "csv_monitor.enabled: planner writes no CSV" in told(found.draft)
    assert json.loads(rewrite(found, "deepspeed", 2).file)["wandb"] == monitors["wandb"]
    off = read_recipe(str(file), [f"{name}.enabled=false" for name in monitors], RecipeOptions(gpus=2)).draft
    assert tracked(off) == {}
    assert "wandb.project: wandb is not enabled" in told(off)


# -- back


@without_shrinking(25)
@given(trackers=st.tuples(wandb, tensorboard, mlflow, trackio), kept=st.sets(st.integers(0, 3)), name=maybe)
def test_trl_reads_back_what_it_can_express(trackers, kept, name, tmp_path_factory):
    """All kinds that transformers has, one of each, with one run name."""
    named = [{**its, "name": name} if its["kind"] != "tensorboard" else its for its in trackers]
    job, folder = job_with(*(named[at] for at in kept)), tmp_path_factory.mktemp("back")
    made = converted(job, "trl", folder)
    assert not re.search(r"tracking\.\w+\.(?!space: )", " ".join(map(str, made.unsaid)))
    found = again(made.command, folder)
    assert effective(found) == effective(job)


@pytest.mark.parametrize("target", ["dpo", "halos"])
@without_shrinking(25)
@given(tracker=wandb, name=maybe)
def test_hydra_reads_back_what_it_can_express(target, tracker, name, tmp_path_factory):
    """Quotes of both kinds in one value, or what looks like a second override, are listed."""
    job, folder = job_with({**tracker, "name": name}), tmp_path_factory.mktemp("back")
    made = converted(job, target, folder)
    assume(not re.search(r"tracking\.", " ".join(map(str, made.unsaid))))
    command = made.command.replace("BLOCK", "Block").replace("[DATA]", "[hh]")
    assert effective(again(command, folder)) == effective(job)


@pytest.mark.parametrize("target", ["dpo", "halos", "trl", "torchtitan", "accelerate", "deepspeed"])
@without_shrinking(25)
@given(trackers=st.lists(wandb | tensorboard | mlflow | trackio | jsonl, max_size=4), name=texts)
def test_every_value_of_a_tracker_is_written_or_listed(target, trackers, name, tmp_path_factory):
    """Also of a second tracker of one kind, which no other system has."""
    named = [{**its, "name": name} if its["kind"] not in {"tensorboard", "jsonl"} else its for its in trackers]
    job = job_with(*named)
    made = converted(job, target, tmp_path_factory.mktemp("said"))
    listed, typed = " ".join(map(str, made.unsaid)), f"{made.command} {made.file}".replace("'\"'\"'", "'")
    for key, value in tracker_values(job):
        shown = ",".join(value) if isinstance(value, tuple) else str(value)
        assert f"{key} " in listed or shown in typed, (key, value)


@pytest.mark.parametrize(
    ("trackers", "target", "said"),
    [
        ([{"kind": "wandb"}, {"kind": "wandb", "project": "b"}], "trl", "tracking.wandb2.project b: TRL has"),
        ([{"kind": "wandb", "name": "a"}, {"kind": "mlflow", "name": "b"}], "trl", "tracking.mlflow.name b: TRL has"),
        ([{"kind": "jsonl", "path": "a.jsonl"}], "trl", "tracking.jsonl.path a.jsonl: TRL has"),
        ([{"kind": "mlflow"}], "halos", "tracking.mlflow.kind mlflow: that system logs to wandb only"),
        ([{"kind": "mlflow"}], "torchtitan", "tracking.mlflow.kind mlflow: torchtitan logs to"),
        ([{"kind": "wandb", "tags": ["a,b"]}], "dpo", "tracking.wandb.tags [a,b]: WANDB_TAGS separates"),
        ([{"kind": "wandb", "project": "a'b\"c"}], "dpo", "write it in quotes that Hydra reads"),
        ([{"kind": "tensorboard", "folder": "d"}], "trl", "for transformers 4 write --logging_dir d"),
        ([{"kind": "wandb"}], "accelerate", "YOUR_SCRIPT must set it"),
    ],
)
def test_what_a_system_cannot_express_is_listed(trackers, target, said, tmp_path):
    assert said in " ".join(map(str, converted(job_with(*trackers), target, tmp_path).unsaid))


@pytest.mark.parametrize(
    ("target", "typed"),
    [("dpo", " wandb.enabled=false "), ("halos", " ++wandb.enabled=false "), ("trl", " --report_to none ")],
)
def test_a_job_without_trackers_turns_theirs_off(target, typed, tmp_path):
    assert typed in converted(job_with(), target, tmp_path).command


def test_several_trackers_need_a_file_in_trl(tmp_path):
    """--report_to takes one name: `--report_to wandb tensorboard` is an error of transformers' parser."""
    made = converted(job_with({"kind": "wandb"}, {"kind": "tensorboard"}), "trl", tmp_path)
    assert made.file == "report_to: [wandb, tensorboard]\n"
    assert " --config trackers.yaml " in made.command
    assert any("trackers.yaml" in note for note in made.notes)


def test_the_variables_of_a_recipe_stay_in_its_own_command():
    command = f"WANDB_PROJECT='my project' WANDB_API_KEY=abc {SFT} --report_to wandb --per_device_train_batch_size 4"
    made = rewrite(read_recipe(command), "trl", 2)
    assert made.command.startswith("WANDB_PROJECT='my project' accelerate launch ")
    assert "abc" not in made.command


def test_a_recipe_of_halos_is_tracked_in_trl_as_it_was():
    """The project and the name of the run, by a variable and an option."""
    made = rewrite(read_recipe(HALOS), "trl", 2)
    assert made.command.startswith("WANDB_PROJECT=halos accelerate launch ")
    assert " --report_to wandb --run_name=Mine " in made.command
