"""Rows that are tokenized on demand: the samples of rows that are tokenized ahead, whatever form they come in."""

import json
import os
import pickle
import shutil
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import datasets
import pytest
from byte_models import gpt
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rows_of import CLASSES, assistant, user
from tiny_tokenizers import byte_level

from planner.data import lazy_rows, lazy_sets, row_access, sample_cache
from planner.data.base import no_progress
from planner.data.open import open_dataset
from planner.errors import DataError
from planner.job import HfModel

PAIRS = [{"prompt": f"{n}", "chosen": f"yes {n}", "rejected": "no"} for n in range(9)]


@pytest.fixture(scope="module", autouse=True)
def library_cache(tmp_path_factory):
    """Tables made of parquet files land in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A model folder with a tokenizer and a chat template."""
    return HfModel(kind="hf", path=str(byte_level(tmp_path_factory.mktemp("model"))), context=40)


def write(rows, folder, form):
    """The rows in a form of files. Returns their path."""
    lines = [json.dumps(row, ensure_ascii=n % 2 == 0) for n, row in enumerate(rows)]
    match form:
        case "lines":
            path = folder / "rows.jsonl"
            path.write_text("\n\n".join(lines) + "\n")
        case "files":
            cut = len(lines) // 2
            for name, part in (("a", lines[:cut]), ("b", []), ("c", lines[cut:])):
                (folder / f"{name}.jsonl").write_text("\r\n".join(part))
            path = folder / "*.jsonl"
        case "parquet":
            import pyarrow as pa
            from pyarrow import parquet

            path = folder / "rows.parquet"
            parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
        case "folder":
            path = folder / "saved"
            datasets.Dataset.from_list(rows).save_to_disk(str(path))
        case "splits":
            path = folder / "both"
            made = datasets.Dataset.from_list(rows)
            datasets.DatasetDict({"train": made, "test": made.select([0])}).save_to_disk(str(path))
    return str(path)


FORMS = ("lines", "files", "parquet", "folder", "splits")


def data(kind, tokenize, **settings):
    return CLASSES[kind](kind=kind, tokenize=tokenize, **settings)


def everything(dataset):
    """The samples, one by one and together, and what the audit would count."""
    rows = range(dataset.num_rows)
    alone = [dataset.sample(row).parts() for row in rows]
    assert [sample.parts() for sample in dataset.samples(list(rows))] == alone
    # In another order, and one of them twice.
    turned = [*reversed(rows), *rows[:1]]
    assert [sample.parts() for sample in dataset.samples(turned)] == [alone[row] for row in turned]
    return alone, [dataset.evidence(row) for row in rows], type(dataset.sample(0))


def agree(kind, model, **settings):
    """Check that both ways have the same samples and lengths. Returns the data set that tokenizes on demand."""
    try:
        ahead = open_dataset(data(kind, "ahead", **settings), model)
    except DataError:
        with pytest.raises(DataError):
            everything(open_dataset(data(kind, "on_demand", **settings), model))
        return None
    found = open_dataset(data(kind, "on_demand", **settings), model)
    assert everything(found) == everything(ahead)
    rows = range(found.num_rows)
    lengths = [[each.tolist() for each in part.lengths(rows)] for part in (found.measured(no_progress), found, ahead)]
    assert lengths[0] == lengths[1] == lengths[2]
    assert [each.num_rows for each in found.sets] == [each.num_rows for each in ahead.sets]
    return found


words = st.text(st.sampled_from("abc é日\n"), min_size=1, max_size=9).filter(str.strip)


def answered(*keys, **fixed):
    """Rows with a prompt, and completions under these keys. All are texts or all messages."""
    texts = st.fixed_dictionaries({"prompt": words, **dict.fromkeys(keys, words), **fixed})
    turns = words.map(lambda text: [assistant(text)])
    messages = st.fixed_dictionaries(
        {"prompt": words.map(lambda text: [user(text)]), **dict.fromkeys(keys, turns), **fixed}
    )
    return st.lists(texts, min_size=1, max_size=6) | st.lists(messages, min_size=1, max_size=6)


conversations = st.lists(
    st.lists(st.tuples(words, words), min_size=1, max_size=2).map(
        lambda turns: {"messages": [turn for a, b in turns for turn in (user(a), assistant(b))]}
    ),
    min_size=1,
    max_size=6,
)
texts = st.lists(st.fixed_dictionaries({"text": words}), min_size=1, max_size=6)
pairwise = answered("output_A", "output_B", label=st.integers(0, 1), type=st.just("pairwise_feedback"))
labels = st.booleans()
CASES = {
    "chat": [
        (conversations, {}),
        (conversations, {"loss_on": "all"}),
        (texts, {"loss_on": "all"}),
        (answered("completion"), {}),
        (answered("chosen", "rejected"), {}),
        (answered("output", type=st.just("sample")), {}),
        (pairwise, {}),
    ],
    "pairs": [(answered("chosen", "rejected"), {}), (pairwise, {})],
    "feedback": [
        (answered("completion", label=labels), {}),
        (answered("output", label=labels, type=st.just("binary_feedback")), {}),
        (answered("chosen", "rejected"), {}),
        (pairwise, {}),
    ],
}
cases = st.sampled_from([(kind, *case) for kind, found in CASES.items() for case in found]).flatmap(
    lambda case: st.tuples(st.just(case[0]), case[1], st.just(case[2]))
)


@examples(60)
@given(
    case=cases,
    form=st.sampled_from(FORMS),
    is_hf=st.booleans(),
    cut=st.sampled_from([{}, {"max_prompt": 3}, {"max_prompt": 4, "cut_prompt": "end"}]),
)
def test_samples_are_those_of_rows_tokenized_ahead(tmp_path_factory, tokens, case, form, is_hf, cut):
    """Every kind, format and form of files. What one way refuses, the other refuses, too."""
    kind, rows, settings = case
    path = write(rows, tmp_path_factory.mktemp("rows"), form)
    agree(kind, tokens if is_hf else gpt(24), path=path, **settings, **cut)


shares = st.one_of(
    st.fixed_dictionaries({"fraction": st.sampled_from([0.5, 1.0, 2.5])}),
    st.fixed_dictionaries({"rows": st.integers(1, 8)}),
    st.just({}),
)


@examples(25)
@given(
    sizes=st.lists(st.tuples(st.integers(2, 9), shares, st.sampled_from(FORMS)), min_size=1, max_size=3),
    seed=st.integers(0, 3),
    kind=st.sampled_from(["pairs", "feedback"]),
)
def test_mixtures_have_the_same_samples(tmp_path_factory, sizes, seed, kind):
    """The same rows of each set in the same order, and the same number of samples for each set."""
    folders = [tmp_path_factory.mktemp("set") for _ in sizes]
    mixture = [
        {"path": write(PAIRS[:size], folder, form), **share}
        for (size, share, form), folder in zip(sizes, folders, strict=True)
    ]
    agree(kind, gpt(50), mixture=mixture, seed=seed)


@pytest.mark.parametrize("form", ["lines", "parquet", "folder"])
def test_rows_that_name_their_split(form, tmp_path):
    """Only those of the split count, and their columns have other names."""
    rows = [{"split": "test" if n % 3 else "train", "q": f"{n}", "a": "x", "b": "y"} for n in range(9)]
    path, columns = write(rows, tmp_path, form), {"prompt": "q", "chosen": "a", "rejected": "b"}
    found = [agree("pairs", gpt(50), path=path, split=split, columns=columns) for split in (None, "train", "test")]
    assert [dataset.num_rows for dataset in found] == [3, 3, 6]
    for settings, error in (
        ({"split": "eval"}, "no 'eval'"),
        ({"columns": {"prompt": "question", "chosen": "a", "rejected": "b"}}, "question"),
    ):
        with pytest.raises(DataError, match=error):
            open_dataset(data("pairs", "on_demand", path=path, **{"columns": columns} | settings), gpt(50))


@pytest.mark.parametrize("form", FORMS)
def test_a_loader_process_has_the_same_samples(form, tmp_path, tokens):
    """A copy by pickle maps the same index and opens the same files."""
    rows = [{"messages": [user(f"hi {n}"), assistant("yo")]} for n in range(5)]
    found = open_dataset(data("chat", "on_demand", path=write(rows, tmp_path, form)), tokens)
    assert everything(pickle.loads(pickle.dumps(found))) == everything(found)


def test_what_can_only_be_read_in_order_is_refused(tmp_path):
    """With the forms that can be read by number."""
    (tmp_path / "rows.json").write_text(json.dumps(PAIRS))
    with pytest.raises(DataError, match=r"data.tokenize: on_demand cannot read single rows of .*rows.json\."):
        open_dataset(data("pairs", "on_demand", path=str(tmp_path / "rows.json")), gpt(50))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"empty.jsonl' holds no rows"):
        open_dataset(data("pairs", "on_demand", path=str(tmp_path / "empty.jsonl")), gpt(50))


@pytest.mark.parametrize(
    ("kind", "settings", "error"),
    [
        ("pairs", {"bad_rows": "skip"}, "cannot leave out bad rows"),
        ("pairs", {"loader": "dpo/hh"}, "the loader dpo/hh makes samples of all rows together"),
        ("chat", {"packing": True}, "packing needs"),
    ],
)
def test_settings_that_need_all_rows_are_refused(kind, settings, error):
    """When the job is read."""
    with pytest.raises(ValidationError, match=error):
        data(kind, "on_demand", path="rows.jsonl", **settings)
    data(kind, "ahead", path="rows.jsonl", **settings)


# -- bad rows


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "rows.jsonl:8: not JSON"),
        ("[1]", "rows.jsonl:8: an array instead of an object"),
        ('{"text": "a"}', "rows.jsonl:8: text, and data.kind pairs takes one of"),
        ('{"split": "test", "prompt": "a", "chosen": "b", "rejected": "c"}', "rows.jsonl:8: it names a split"),
    ],
)
def test_opening_finds_lines_without_the_format(line, error, tmp_path, monkeypatch):
    """Every line is parsed once, so such a row is found before training. The advice is not to skip rows."""
    monkeypatch.setattr(lazy_sets, "_TRIED", 1)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 1)
    lines = [json.dumps(row) for row in PAIRS]
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines[:7], line, *lines[7:]]))
    with pytest.raises(DataError) as raised:
        open_dataset(data("pairs", "on_demand", path=str(tmp_path / "rows.jsonl")), gpt(50))
    assert error in str(raised.value)
    assert "data.tokenize: ahead with data.bad_rows: skip" in str(raised.value)


def test_opening_tries_rows_all_over_the_data(tmp_path, monkeypatch):
    """The first, the last and some between them. Their error and their notes say so."""
    monkeypatch.setattr(lazy_sets, "_TRIED", 3)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 3)
    long, same = PAIRS[0] | {"chosen": "yes" * 30}, PAIRS[0] | {"chosen": "no"}
    path = write([*PAIRS, long], tmp_path, "lines")
    notes = open_dataset(data("pairs", "on_demand", path=path), gpt(50)).notes
    assert notes[0].startswith("rows are tokenized when a step needs them")
    assert notes[1].startswith("of 3 rows that were tried: 1 of 3 samples were cut to model.context: 50 tokens")
    path = write([*PAIRS, same], tmp_path, "lines")
    with pytest.raises(DataError, match="1 of 3 rows that were tried cannot be used"):
        open_dataset(data("pairs", "on_demand", path=path), gpt(50))


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_row_is_found_when_it_is_read(form, tmp_path, monkeypatch):
    """The error names its place, also if it is read together with others. The others can be read."""
    monkeypatch.setattr(lazy_sets, "_TRIED", 1)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 1)
    rows = [row | {"chosen": "no"} if n == 7 else row for n, row in enumerate(PAIRS)]
    found = open_dataset(data("pairs", "on_demand", path=write(rows, tmp_path, form)), gpt(50))
    place = {
        "lines": r"rows.jsonl:15",
        "files": r"c.jsonl:4",
        "parquet": r"rows.parquet, row 7",
        "folder": r"saved, row 7",
        "splits": r"both/train, row 7",
    }[form]
    for asked in ([7], [3, 7, 1]):
        with pytest.raises(DataError, match=f"{place} cannot be used: chosen and rejected are the same. Correct"):
            found.samples(asked)
    assert len(found.samples([0, 8, 3])) == 3


def test_a_file_that_changes_is_not_read_any_more(tmp_path):
    """A run must not take other rows than those that identify it."""
    path = write(PAIRS, tmp_path, "files")
    found = open_dataset(data("pairs", "on_demand", path=path), gpt(50))
    (tmp_path / "a.jsonl").write_text((tmp_path / "a.jsonl").read_text().replace("yes", "bad"))
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    with pytest.raises(DataError, match=r"a.jsonl has changed since it was opened"):
        found.sample(0)
    assert found.sample(8)


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_a_table_that_changes_is_not_read_any_more(form, tmp_path):
    """A loader process that starts later maps what is there then. Files that are gone stay mapped."""
    path = write(PAIRS, tmp_path, form)
    found = open_dataset(data("pairs", "on_demand", path=path), gpt(50))
    first = repr(found.samples([1]))
    [file] = (each["filename"] for each in found.parts[0].access.table.cache_files)
    other = write([row | {"chosen": "bad"} for row in PAIRS], tmp_path / "other", "folder")
    Path(file).rename(f"{file}.gone")
    assert repr(found.samples([1])) == first
    shutil.copy(next(Path(other).glob("*.arrow")), file)
    for each in (found, pickle.loads(pickle.dumps(found))):
        with pytest.raises(DataError, match=rf"{Path(file).name} has changed since it was opened"):
            each.samples([1])


# -- the identity


def fingerprint(path, model=None, kind="pairs", **settings):
    return open_dataset(data(kind, "on_demand", path=path, **settings), model or gpt(50)).fingerprint


def test_the_fingerprint_covers_what_samples_depend_on(tmp_path, tokens):
    """The content, wherever it is, and each setting. The file's time and place do not matter."""
    path = write(PAIRS, tmp_path, "lines")
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(path, tmp_path / "elsewhere")
    first = fingerprint(path)
    assert fingerprint(copy) == first
    # A tokenizer of another size knows other words.
    other = byte_level(tmp_path / "elsewhere", vocab_size=300)
    (tmp_path / "other.jsonl").write_text((tmp_path / "rows.jsonl").read_text().replace("no", "na"))
    columns = {name: name for name in ("prompt", "chosen", "rejected")}
    found = [
        first,
        fingerprint(path, kind="feedback"),
        fingerprint(path, gpt(49)),
        fingerprint(path, tokens),
        fingerprint(path, HfModel(kind="hf", path=str(other), context=40)),
        fingerprint(path, max_prompt=7),
        fingerprint(path, max_prompt=7, cut_prompt="end"),
        fingerprint(path, columns=columns),
        fingerprint(str(tmp_path / "other.jsonl")),
        open_dataset(data("pairs", "ahead", path=path), gpt(50)).fingerprint,
    ]
    assert len(set(found)) == len(found)


def test_the_fingerprint_of_a_mixture_covers_its_rows(tmp_path):
    """How many of each set, and which."""
    path = write(PAIRS, tmp_path, "lines")

    def of(*sets, seed=0):
        mixture = [{"path": path, **each} for each in sets]
        found = open_dataset(data("pairs", "on_demand", mixture=mixture, seed=seed), gpt(50))
        return found.fingerprint, tuple(each.fingerprint for each in found.sets)

    found = [of({}, {}), of({}, {"rows": 4}), of({}, {"rows": 5}), of({}, {"rows": 4}, seed=1), of({"rows": 4}, {})]
    assert len(set(found)) == len(found)
    assert of({}, {"rows": 9}, seed=3) == of({}, {})


ROWS = {
    "chat": [
        {"messages": [user("hi"), assistant("yo"), user("é"), assistant("ok")]},
        {"prompt": "a", "completion": "b"},
        {"type": "sample", "prompt": [user("a")], "output": [assistant("b")]},
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
    ],
    "pairs": [PAIRS[0], {"type": "pairwise_feedback", "prompt": "a", "output_A": "b", "output_B": "c", "label": 0}],
    "feedback": [PAIRS[0], {"prompt": "a", "completion": "b", "label": False}],
}


def test_samples_change_only_with_their_number(tmp_path):
    """If this fails, raise `lazy_rows._SAMPLES` and write the new digest here: runs must not mix the two."""
    digest = sha256()
    # Its tokens are bytes, so they do not depend on how the library trains a tokenizer.
    (tmp_path / "model").mkdir()
    byte_tokens = HfModel(kind="hf", path=str(byte_level(tmp_path / "model", vocab_size=259)), context=60)
    for kind, rows in ROWS.items():
        for row in rows:
            job = data(kind, "on_demand", path=write([row], tmp_path, "lines"), max_prompt=9)
            for model in (gpt(16), byte_tokens):
                digest.update(repr((kind, everything(open_dataset(job, model))[:2])).encode())
    assert (lazy_rows._SAMPLES, digest.hexdigest()) == (
        1,
        "d2b2e802db7396170ebf2dcc296927bdd46d254c4ff3be9aa2d017a213961176",
    )


# -- the index on disk


@contextmanager
def nothing_is_read(monkeypatch):
    def refuse(*_):
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(row_access, "_checked", refuse)
        patch.setattr(row_access, "content_fingerprint", refuse)
        yield


@pytest.mark.parametrize("form", FORMS)
def test_the_index_is_made_once_on_a_machine(form, tmp_path, monkeypatch):
    """The second time, lines are not parsed and files are not digested."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    path = write(PAIRS, tmp_path, form)
    with pytest.raises(AssertionError), nothing_is_read(monkeypatch):
        fingerprint(path)
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    first = open_dataset(data("pairs", "on_demand", path=path), gpt(50))
    samples = everything(first)
    with nothing_is_read(monkeypatch):
        again = open_dataset(data("pairs", "on_demand", path=path), gpt(50))
    assert everything(again) == samples
    assert again.fingerprint == first.fingerprint
    for positions in (tmp_path / "cache").rglob("positions"):
        positions.write_bytes(positions.read_bytes()[:-8] + b"\1" * 8)
    assert everything(open_dataset(data("pairs", "on_demand", path=path), gpt(50))) == samples
