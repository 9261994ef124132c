"""The data of a converted recipe: the job names what planner reads itself, and the to-do's code runs for the rest.

The rows are read and the code is executed without a network, on files, folders and a data set in the hub's cache.
"""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from planner.data.mixture import times_used, used_rows
from planner.data.rows import open_rows
from planner.errors import RecipeError
from planner.recipes import RecipeOptions, job_of, read_recipe
from planner.recipes.drafting_data import python_command, set_data
from planner.recipes.recipe import Draft
from planner.recipes.row_sources import DatasetSource

PAIRS = [{"prompt": f"p{n}", "chosen": "yes", "rejected": "no"} for n in range(4)]
OPTIONS = RecipeOptions(gpus=2, method="dpo")
RECIPE = "model_name_or_path: m\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-6\n"


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """An empty folder without a network, and a cache of its own for the datasets library."""
    import datasets
    import huggingface_hub

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def write(path, rows):
    """The rows in a file of the form that its name says."""
    from datasets import Dataset

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    kind, table = Path(path).suffix, Dataset.from_list(rows)
    if kind == ".parquet":
        table.to_parquet(path)
    elif kind in {".csv", ".tsv"}:
        table.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    elif kind == ".json":
        Path(path).write_text(json.dumps(rows))
    else:
        Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def cache(name, rows):
    """A data set of the hub as the datasets library keeps it after a download."""
    from datasets import config, load_dataset

    write("made.jsonl", rows)
    loaded = load_dataset("json", data_files="made.jsonl", split="train")
    made = Path(loaded.cache_files[0]["filename"])
    short = name.split("/")[-1]
    kept = Path(config.HF_DATASETS_CACHE, name.replace("/", "___"), "default/0.0.0/abc")
    shutil.copytree(made.parent, kept)
    (kept / made.name).rename(kept / f"{short}-train.arrow")
    info = json.loads((kept / "dataset_info.json").read_text())
    (kept / "dataset_info.json").write_text(json.dumps({**info, "dataset_name": short}))
    Path("made.jsonl").unlink()


def converted(text):
    """(data section, to-dos) of a recipe file."""
    Path("recipe.yaml").write_text(text)
    recipe = read_recipe("recipe.yaml", (), OPTIONS)
    return job_of(recipe)[0].data, recipe.draft.to_do


def commands(to_do):
    """The code of each command in the to-do list, which a shell passes on unchanged."""
    lines = [line for each in to_do for line in each.commands]
    for line in lines:
        program, flag, code = shlex.split(line)
        assert (program, flag) == ("python", "-c")
        compile(code, "the to-do", "exec")
    return [shlex.split(line)[2] for line in lines]


def texts(data):
    """The prompts of the rows that an epoch of the job uses."""
    opened = [open_rows(each, takes_pairs=data.kind != "chat") for each in data.sets]
    found = [rows.count() for rows in opened]
    used = used_rows(data.sets, found)
    times = [times_used(*counts, data.seed) for counts in zip(found, used, strict=True)]
    return [str(row.fields["prompt"]) for rows, its in zip(opened, times, strict=True) for row in rows.read(its)]


def trained_on(text):
    """The prompts that the job trains on when the to-do's code has run, and whether there was any code."""
    data, to_do = converted(text)
    code = commands(to_do)
    for each in code:
        exec(each, {})
    return texts(data), bool(code)


ALL = ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize("name", ["rows.jsonl", "in/rows.json", "./rows.jsonl", "rows.parquet", "my rows $(x).jsonl"])
def test_a_file_that_planner_reads_becomes_the_path_and_needs_no_to_do(name):
    write(name, PAIRS)
    data, to_do = converted(f"{RECIPE}dataset_name: {json.dumps(name)}\n")
    assert data.path == name
    assert texts(data) == ALL
    assert not commands(to_do)
    assert not [text for text in map(str, to_do) if "data.path" in text or "save the data" in text]


@pytest.mark.parametrize("name", ["rows.csv", "rows.tsv", "data/rows.csv", 'it\'s "$(x)" `x`.csv'])
def test_the_code_for_a_file_of_another_form_runs(name):
    write(name, PAIRS)
    assert trained_on(f"{RECIPE}dataset_name: {json.dumps(name)}\n") == (ALL, True)


def test_a_compressed_file_is_loaded_too():
    import gzip

    with gzip.open("rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in PAIRS)
    assert trained_on(f"{RECIPE}dataset_name: rows.jsonl.gz\n") == (ALL, True)


@pytest.mark.parametrize("name", ["pairs", "data/pairs", "./pairs", "a/b/c/pairs"])
def test_a_folder_of_files_becomes_the_path(name):
    write(f"{name}/train.jsonl", PAIRS)
    write(f"{name}/test.jsonl", PAIRS[:1])
    assert trained_on(f"{RECIPE}dataset_name: {name}\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: {name}\ndataset_train_split: test\n") == (ALL[:1], False)
    assert trained_on(f"{RECIPE}dataset_name: {name}\ndataset_train_split: 'train[1:3]'\n") == (ALL[1:3], False)


def test_a_folder_that_save_to_disk_wrote_becomes_the_path():
    from datasets import Dataset, DatasetDict

    Dataset.from_list(PAIRS).save_to_disk("one")
    DatasetDict({"train": Dataset.from_list(PAIRS), "late": Dataset.from_list(PAIRS[2:])}).save_to_disk("several")
    assert trained_on(f"{RECIPE}dataset_name: one\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: several\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: several\ndataset_train_split: late\n") == (ALL[2:], False)


def test_a_name_of_the_hub_becomes_the_path():
    cache("org/pairs", PAIRS)
    assert trained_on(f"{RECIPE}dataset_name: org/pairs\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: org/pairs\ndataset_streaming: true\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: org/pairs\ndataset_config: default\n") == (ALL, False)
    assert trained_on(f"{RECIPE}dataset_name: org/pairs\ndataset_train_split: 'train[:50%]'\n") == (ALL[:2], False)


def test_a_name_without_an_owner_is_saved_because_no_job_can_name_it():
    data, to_do = converted(f"{RECIPE}dataset_name: imdb\n")
    (code,) = commands(to_do)
    assert code == "from datasets import load_dataset; load_dataset('imdb', split='train').save_to_disk('data/imdb')"
    assert (data.path, data.split) == ("data/imdb/", None)


def test_a_share_of_a_file_is_saved_and_not_the_whole_file():
    write("rows.jsonl", PAIRS)
    assert trained_on(f"{RECIPE}dataset_name: rows.jsonl\ndataset_train_split: 'train[1:3]'\n") == (ALL[1:3], True)


def test_a_mixture_of_files_folders_and_names_becomes_one_of_the_job():
    """Of each only the columns that the recipe keeps. The one that planner does not read must be saved."""
    cache("org/pairs", PAIRS)
    write("rows.jsonl", [{**row, "note": 3} for row in PAIRS[:1]])
    write("rows.csv", PAIRS[1:2])
    write("folder/train.jsonl", PAIRS[2:3])
    columns = "columns: [prompt, chosen, rejected]"
    listed = "".join(f"  - {{id: {id_}, {columns}}}\n" for id_ in ("rows.jsonl", "rows.csv", "folder", "org/pairs"))
    found, has_code = trained_on(f"{RECIPE}dataset_mixture:\n  datasets:\n{listed}")
    assert (found, has_code) == ([*ALL[:3], *ALL], True)
    data, _ = converted(f"{RECIPE}dataset_mixture:\n  datasets:\n{listed}")
    assert [each.path for each in data.sets] == ["rows.jsonl", "data/rows/", "folder", "org/pairs"]
    assert all(list(each.columns) == ["prompt", "chosen", "rejected"] for each in data.sets)


def test_sets_with_one_short_name_are_saved_in_folders_of_their_own():
    write("a/rows.csv", PAIRS[:1])
    write("b/rows.csv", PAIRS[1:3])
    listed = "  - {id: a/rows.csv}\n  - {id: b/rows.csv}\n"
    assert trained_on(f"{RECIPE}dataset_mixture:\n  datasets:\n{listed}") == (ALL[:3], True)


@pytest.mark.parametrize(("weight", "seed"), [(0.5, 0), (0.5, 3), (0.75, 1), (1.0, 0)])
def test_a_part_has_the_rows_that_the_handbook_takes(weight, seed):
    """It shuffles a set by its seed and takes the first int(len * weight) rows."""
    cache("org/pairs", PAIRS)
    from datasets import load_dataset

    table = load_dataset("org/pairs", split="train").shuffle(seed=seed)
    theirs = table.select(range(int(len(table) * weight)))["prompt"]
    listed = f"  - {{id: org/pairs, weight: {weight}}}\n"
    ours, has_code = trained_on(f"{RECIPE}dataset_mixture:\n  seed: {seed}\n  datasets:\n{listed}")
    assert (sorted(ours), has_code) == (sorted(theirs), False)


def test_the_list_of_trl_has_the_arguments_of_load_dataset():
    write("a/rows.jsonl", PAIRS[:2])
    write("a/more.jsonl", PAIRS[2:])
    for one in (
        "{path: json, data_files: a/rows.jsonl}",
        "{path: json, data_files: {late: a/rows.jsonl}, split: late}",
    ):
        assert trained_on(f"{RECIPE}datasets:\n  - {one}\n") == (ALL[:2], False)
    for all_rows in ("{path: json, data_files: [a/rows.jsonl, a/more.jsonl]}", "{path: json, data_files: a/*.jsonl}"):
        assert sorted(trained_on(f"{RECIPE}datasets:\n  - {all_rows}\n")[0]) == ALL
    below = "datasets:\n  - {path: json, data_dir: a}\n  - {path: ., data_dir: a, split: train, columns: [prompt]}\n"
    found, has_code = trained_on(RECIPE + below)
    assert (sorted(found), has_code) == (sorted([*ALL, *ALL]), False)
    hub = f"{RECIPE}datasets:\n  - {{path: org/x, data_dir: a}}\n  - {{path: org/x, data_files: [b.json]}}\n"
    data, to_do = converted(hub)
    assert data.sets[0].name == "org/x a train"
    (code,) = commands(to_do)
    assert "load_dataset('org/x', data_files=['b.json'], split='train')" in code


def test_fractions_of_trl_are_shares_of_the_mixture():
    """TRL normalises them and takes as many rows as it can without a repeat (get_dataset of trl.scripts.utils)."""
    from trl.scripts.utils import DatasetConfig, DatasetMixtureConfig, get_dataset

    write("a/train.jsonl", [{**PAIRS[0], "prompt": f"a{n}"} for n in range(20)])
    write("b/train.jsonl", [{**PAIRS[0], "prompt": f"b{n}"} for n in range(30)])
    listed = [{"path": "a", "fraction": 0.3}, {"path": "b", "fraction": 0.9}, {"path": "a", "fraction": 0}]
    text = f"{RECIPE}datasets: {json.dumps(listed)}\n"
    ours, has_code = trained_on(text)
    theirs = get_dataset(DatasetMixtureConfig(datasets=[DatasetConfig(**each) for each in listed]))["train"]["prompt"]
    assert not has_code
    assert sorted(prompt[0] for prompt in ours) == sorted(prompt[0] for prompt in theirs) == [*"a" * 10, *"b" * 30]
    assert [each.weight for each in converted(text)[0].sets] == [0.3, 0.9]
    derived = read_recipe("recipe.yaml", (), OPTIONS).draft.derived
    assert any("takes the first rows of a set" in note.text for note in derived)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("datasets: [{path: org/a, fraction: 0.3}, {path: org/b}]", "datasets: write a fraction"),
        ("datasets: [{path: org/a, fraction: -1}]", "datasets: write a fraction"),
        ("datasets: org/a", 'datasets: found "org/a" (text). Write a list of data sets, each with path'),
        ("dataset_mixture: org/a", "dataset_mixture: found"),
        ("dataset_mixture: {datasets: org/a}", "dataset_mixture.datasets: found"),
        ("datasets: [{path: org/a, split: [a, b]}]", "found the split a list of 2. Write a section for"),
        ("datasets: [{name: org/a}]", "without the name of a data set. Write path"),
        ("dataset_mixture: {datasets: [{path: org/a}]}", "without the name of a data set. Write id"),
        (
            "dataset_mixture: {datasets: [{id: org/a, weight: 2}]}",
            "the weight of org/a: found 2 (a whole number). Write",
        ),
        ("dataset_mixture: {datasets: [{id: org/a, weight: half}]}", 'the weight of org/a: found "half"'),
        ("dataset_mixer: {org/a: -0.5}", "dataset_mixer.org/a: found -0.5"),
        ("dataset_mixture: {datasets: [{id: org/a}], test_split_size: 0}", "test_split_size: found 0"),
        ("dataset_mixture: {datasets: [{id: org/a}], test_split_size: true}", "test_split_size: found true"),
    ],
)
def test_what_the_script_would_refuse_is_refused(lines, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        converted(f"{RECIPE}{lines}\n")


def test_a_list_of_data_sets_beats_a_name():
    """An empty list does not, as in TRL's scripts."""
    both = f"{RECIPE}dataset_name: org/b\ndataset_test_split: late\neval_strategy: steps\ntest_split_size: 0.5\n"
    data, _ = converted(f"{both}datasets: [{{path: org/a, columns: prompt}}]\n")
    assert (data.path, data.columns) == ("org/a", {"prompt": "prompt"})
    dropped = {note.key: note.text for note in read_recipe("recipe.yaml", (), OPTIONS).draft.dropped}
    assert dropped["dataset_name"] == dropped["dataset_test_split"] == "the scripts take the list of data sets instead"
    assert "test_split_size" not in dropped
    assert converted(f"{both}datasets: []\n")[0].path == "org/b"
    assert "test_split_size" in {note.key for note in read_recipe("recipe.yaml", (), OPTIONS).draft.dropped}


def test_a_test_split_that_only_a_shell_knows_is_asked_for():
    """Only where the recipe evaluates it."""
    command = "trl dpo --num_processes 2 --model_name_or_path m --dataset_name org/a --dataset_test_split $SPLIT"
    with pytest.raises(RecipeError, match=r"dataset_test_split: found \$SPLIT"):
        read_recipe(f"{command} --eval_strategy steps", (), RecipeOptions(method="dpo"))
    assert read_recipe(command, (), RecipeOptions(method="dpo")).draft.job["data"]["path"] == "org/a"


def test_a_weight_of_zero_leaves_the_set_out():
    data, _ = converted(f"{RECIPE}dataset_mixture:\n  datasets: [{{id: org/a, weight: 0}}, {{id: org/b}}]\n")
    assert (data.path, data.mixture) == ("org/b", ())


def test_a_column_of_text_with_another_name_is_carried():
    text = RECIPE.replace("learning_rate", "dataset_text_field: content\nlearning_rate")
    Path("recipe.yaml").write_text(f"{text}dataset_name: org/a\n")
    data = job_of(read_recipe("recipe.yaml", (), RecipeOptions(gpus=2, method="sft")))[0].data
    assert data.columns == {"text": "content"}


def test_the_older_handbook_takes_folders_of_a_split():
    """Its script loads `FOLDER/SPLIT` with load_from_disk."""
    from datasets import Dataset

    Dataset.from_list(PAIRS).save_to_disk("mine/train_prefs")
    text = f"{RECIPE}beta: 0.1\ndataset_mixer:\n  mine: 1.0\ndataset_splits: [train_prefs, test_prefs]\n"
    assert trained_on(text) == (ALL, False)


def test_the_older_handbook_pairs_splits_with_shares_in_order():
    """So of two sets with two splits each, it trains on both splits of the first and none of the second."""
    text = f"{RECIPE}beta: 0.1\ndataset_mixer: {{org/a: 0.5, org/b: 1.0}}\ndataset_splits: [train_a, train_b, test]\n"
    data, _ = converted(text)
    assert [(each.name, each.fraction) for each in data.sets] == [("org/a train_a", 0.5), ("org/a train_b", None)]


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("python train.py model=pythia28 datasets=[FILE] loss=dpo loss.beta=0.1 exp_name=x batch_size=8", None),
        ("accelerate launch --num_processes 2 dpo.py --model_name_or_path m --dataset_name FILE", "dpo"),
        ("trl dpo --num_processes 2 --model_name_or_path m --dataset_name FILE", "dpo"),
    ],
)
def test_a_command_with_a_file_trains_on_that_file(command, method):
    write("rows.jsonl", PAIRS)
    recipe = read_recipe(command.replace("FILE", "rows.jsonl"), (), RecipeOptions(gpus=2, method=method))
    assert recipe.draft.job["data"]["path"] == "rows.jsonl"
    assert not commands(recipe.draft.to_do)


def test_a_file_that_is_not_there_is_said_and_not_asked_of_the_hub(tmp_path):
    data, to_do = converted(f"{RECIPE}dataset_name: data/rows.jsonl\n")
    told = (
        f"data.path: found nothing at data/rows.jsonl (relative to {tmp_path}, where planner runs). Put the data there"
    )
    assert data.path == "data/rows.jsonl"
    assert any(text.startswith(told) for text in map(str, to_do))
    assert not commands(to_do)
    data, to_do = converted(f"{RECIPE}dataset_name: /nowhere/rows.csv\n")
    (code,) = commands(to_do)
    assert "load_dataset('csv', data_files='/nowhere/rows.csv'" in code
    assert data.path == "data/rows/"


def test_a_file_with_rows_of_another_form_is_said():
    write("rows.jsonl", [{"question": "a", "answer": "b"}])
    data, to_do = converted(f"{RECIPE}dataset_name: rows.jsonl\n")
    (text,) = (text for text in map(str, to_do) if "data.path" in text)
    assert text.startswith("data.path: the first row of rows.jsonl cannot be used: the keys answer, question")
    assert data.path == "rows.jsonl"
    Path("rows.jsonl").write_text("")
    assert any("rows.jsonl has no rows" in each.text for each in converted(f"{RECIPE}dataset_name: rows.jsonl\n")[1])


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_pattern_that_files_match_is_not_called_missing(suffix):
    for name, rows in (("a", PAIRS[:2]), ("b", PAIRS[2:])):
        write(f"rows/{name}.{suffix}", rows)
    _, to_do = converted(f"{RECIPE}dataset_name: rows/*.{suffix}\n")
    assert not [text for text in map(str, to_do) if "found nothing" in text]
    assert trained_on(f"{RECIPE}dataset_name: rows/*.{suffix}\n") == (ALL, suffix == "csv")
    _, to_do = converted(f"{RECIPE}dataset_name: nowhere/*.{suffix}\n")
    assert any("found nothing at nowhere/*" in text for text in map(str, to_do))


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"chosen": "User: a Bot: b", "rejected": "User: a Bot: c"}, "chosen and rejected are texts that"),
        ({"prompt": "a", "chosen": 1, "rejected": "b"}, "chosen"),
    ],
)
def test_a_file_with_the_right_keys_and_values_that_cannot_be_used_is_said(row, why):
    """Such as pairs that begin with their prompt, without saying where it ends."""
    write("rows.jsonl", [row])
    _, to_do = converted(f"{RECIPE}dataset_name: rows.jsonl\n")
    assert [
        text
        for text in map(str, to_do)
        if text.startswith(f"data.path: the first row of rows.jsonl cannot be used: {why}")
    ]


ODD_NAMES = [
    *("org/it's", 'org/"x"', "org/$(touch harmed)", "org/`touch harmed`", "org/a\\b", "org/x'); import os; ('"),
    *("a\nb", "!x", "org/\x1b[31m", "org/\u202e"),
]


def command_for(name):
    draft = Draft()
    set_data(draft, "pairs", [DatasetSource(name=name, config="it's $x", split="train")])
    return draft.job["data"]["path"], draft.to_do


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_becomes_code(name):
    """The code has it as one text, with only characters that can be shown."""
    path, to_do = command_for(name)
    called = []

    class Loaded:
        def save_to_disk(self, folder):
            called.append(folder)

    def load_dataset(*names, **_others):
        called.append(names)
        return Loaded()

    (code,) = commands(to_do)
    assert code.isprintable()
    exec(code.removeprefix("from datasets import load_dataset; "), {"load_dataset": load_dataset})
    assert called == [(name, "it's $x"), path.rstrip("/")]


@pytest.mark.process
def test_a_shell_replaces_nothing_in_the_code():
    lines, codes = [], []
    for name in ODD_NAMES:
        _, to_do = command_for(name)
        codes += commands(to_do)
        lines += to_do[-1].commands
    script = "\n".join(["python() { printf '%s\\n' \"$2\"; }", *lines])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == codes
    assert not Path("harmed").exists()


def test_code_without_special_characters_stays_easy_to_read():
    assert python_command("print('a')") == "python -c \"print('a')\""


# -- the DPO repository


def _dpo_to_do(datasets, more=""):
    command = (
        f"python -u train.py model=pythia28 datasets=[{datasets}] loss=dpo loss.beta=0.1 exp_name=a batch_size=64 "
        f"gradient_accumulation_steps=2 eval_batch_size=32 trainer=FSDPTrainer {more}"
    )
    return " ".join(map(str, read_recipe(command, options=RecipeOptions(gpus=4)).draft.to_do))


def test_hh_beside_other_sets_is_cut_at_another_side():
    """One job has one side."""
    assert "prompts of hh above data.max_prompt" in _dpo_to_do("hh,shp")
    assert "prompts of hh" not in _dpo_to_do("hh") + _dpo_to_do("shp,se")


def test_weights_of_an_earlier_stage_may_be_those_of_a_run():
    """The recipe names the repository's own file."""
    assert "Write after: RUN" in _dpo_to_do("hh", "model.archive=/runs/sft/policy.pt")
