"""Mixtures: which rows of which set, exact to one row, and the same as the datasets library takes."""

import pickle
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path

import datasets
import numpy as np
import pytest
from byte_models import gpt
from hub_layout import SIZES, write_set, write_sets
from hypothesis import given
from hypothesis import strategies as st
from rows_of import CLASSES, parts

from planner.data import sample_cache
from planner.data.hub_sets import is_hub_name
from planner.data.mixture import times_used, used_rows
from planner.data.open import open_dataset
from planner.data.rows import open_rows
from planner.data.source_stamps import data_stamps, placed
from planner.errors import DataError
from planner.job import MixtureSet, RowSource

FIVE = {
    "alpha": {"fraction": 0.5},
    "beta": {},
    "gamma": {"rows": 100},
    "delta": {"fraction": 2.5},
    "epsilon": {"rows": 1},
}
USED = {"alpha": 50, "beta": 37, "gamma": 100, "delta": 30, "epsilon": 1}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Name -> path of five sets of conversations, loaded into a cache of their own."""
    folder = tmp_path_factory.mktemp("sets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield write_sets(folder)


def mixture(sets, shares=FIVE, kind="chat", **settings):
    mixed = [{"path": sets[name], "config": "SFT", "split": "train", **share} for name, share in shares.items()]
    return CLASSES[kind](kind=kind, mixture=mixed, **settings)


def opened(data):
    return open_dataset(data, gpt(200))


def texts(dataset):
    """The samples of each set, in order."""
    found, start = [], 0
    for each in dataset.sets:
        found.append([parts(dataset.sample(row)) for row in range(start, start + each.num_rows)])
        start += each.num_rows
    return found


# -- how many rows


@given(
    found=st.lists(st.integers(200, 10_000), min_size=1, max_size=25),
    seed=st.randoms(use_true_random=False),
)
def test_weights_take_the_longest_epoch_in_proportion(found, seed):
    """Counts are in proportion to one row, no set has too few rows, and no longer epoch would do."""
    weights = [seed.choice([0.1, 0.25, 0.3, 1.0, 2.0, 7.5]) for _ in found]
    sets = [MixtureSet(path="x", weight=weight) for weight in weights]
    whole = sum(Fraction(str(weight)) for weight in weights)
    used = used_rows(sets, found)
    total = sum(used)
    assert all(0 < count <= most for count, most in zip(used, found, strict=True))
    exact = [total * Fraction(str(weight)) / whole for weight in weights]
    assert all(abs(count - share) < 1 for count, share in zip(used, exact, strict=True))
    # Two rows more, and rounding alone would not save it.
    longer = [(total + 2) * Fraction(str(weight)) / whole for weight in weights]
    assert any(share > most - 1 for share, most in zip(longer, found, strict=True))


@given(num_rows=st.integers(1, 300), used=st.integers(1, 1000), seed=st.integers(0, 2**32 - 1))
def test_rows_are_used_equally_often(num_rows, used, seed):
    """Repeats differ by at most one."""
    times = times_used(num_rows, used, seed)
    assert times.sum() == used
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize(("fraction", "seed"), [(0.001, 0), (0.3, 0), (0.7, 42), (1.0, 7)])
def test_the_rows_are_those_of_the_handbook(fraction, seed):
    """`ds.shuffle(seed).select(range(int(len(ds) * weight)))` is what alignment-handbook does."""
    table = datasets.Dataset.from_dict({"number": list(range(1234))})
    theirs = table.shuffle(seed=seed).select(range(int(len(table) * fraction)))["number"]
    used = used_rows([MixtureSet(path="x", fraction=fraction)], [1234])[0]
    assert np.flatnonzero(times_used(1234, used, seed)).tolist() == sorted(theirs)


@pytest.mark.parametrize(
    ("share", "found", "reason"),
    [
        ({"fraction": 0.01}, 99, "fraction 0.01 takes none of its 99 rows. Write a larger fraction"),
        ({}, 0, "has no rows. Remove the set"),
        ({"rows": 5}, 0, "has no rows. Remove the set"),
        ({"fraction": 2.0}, 0, "has no rows. Remove the set"),
    ],
)
def test_a_set_without_rows_is_refused(share, found, reason):
    """Nobody wants a set in a mixture that has no part in it."""
    with pytest.raises(DataError, match=rf"data.mixture: org/x:? {reason}"):
        used_rows([MixtureSet(path="org/x", **share)], [found])


def test_rows_that_would_not_fit_are_refused():
    """A slip would take all memory. A thousand times is what `fraction` allows."""
    assert used_rows([MixtureSet(path="org/x", rows=7000)], [7]) == (7000,)
    with pytest.raises(DataError, match=r"org/x has 7 rows, and rows: 7001 would use each .* Write at most 7000"):
        used_rows([MixtureSet(path="org/x", rows=7001)], [7])


# -- five sets


def test_counts_are_exact_and_the_rows_are_a_witness_s(sets):
    """Every set has the rows that the datasets library chooses, each as often as asked for."""
    dataset = opened(mixture(sets, seed=3))
    assert [each.num_rows for each in dataset.sets] == list(USED.values())
    assert dataset.num_rows == sum(USED.values())
    for (name, used), samples in zip(USED.items(), texts(dataset), strict=True):
        table = datasets.load_dataset(sets[name], "SFT", split="train").shuffle(seed=3)
        rows = [table[i % len(table)]["messages"][1]["content"] for i in range(used)]
        assert Counter(rows) == Counter(completion[:-1].decode() for _, completion in samples), name


@pytest.mark.parametrize("tokenize", ["ahead", "on_demand"])
def test_rows_that_repeat_are_noted(sets, tokenize):
    """Held-out rows would be trained on as well."""
    notes = [note for note in opened(mixture(sets, tokenize=tokenize)).notes if "other copies" in note]
    assert [note.split(". ")[0] for note in notes] == [
        f"{sets['delta']} SFT train: an epoch uses 30 rows of the 12 that it has"
    ]


def test_each_set_has_the_fingerprint_that_it_has_alone(sets):
    """A change in one set is a change of its fingerprint and of the whole, and of no other set's."""
    one = opened(mixture(sets))
    other = opened(mixture(sets, {**FIVE, "gamma": {"rows": 101}}))
    same = [a.fingerprint == b.fingerprint for a, b in zip(one.sets, other.sets, strict=True)]
    assert same == [True, True, False, True, True]
    assert one.fingerprint != other.fingerprint
    alone = opened(CLASSES["chat"](kind="chat", path=sets["beta"], config="SFT", split="train"))
    assert one.sets[1].fingerprint == alone.fingerprint
    assert alone.sets == ()


@pytest.mark.parametrize("settings", [{"packing": True}, {}])
@pytest.mark.parametrize("kind", ["chat", "pairs", "feedback"])
def test_a_mixture_is_its_sets_one_after_another(kind, settings, tmp_path, monkeypatch):
    """Row by row, for all kinds, packed sets too. A copy in another process and one from the cache are the same."""
    if settings and kind != "chat":
        return
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    written = "chat" if kind == "chat" else "pairs"
    sets = {name: write_set(tmp_path / "org" / name, written, count) for name, count in SIZES.items()}
    data = mixture(sets, {name: {} for name in SIZES}, kind, **settings)
    dataset = opened(data)
    alone = [
        opened(CLASSES[kind](kind=kind, path=path, config="SFT", split="train", **settings)) for path in sets.values()
    ]
    expected = [(each.sample(row).parts()) for each in alone for row in range(each.num_rows)]
    assert [each.fingerprint for each in dataset.sets] == [each.fingerprint for each in alone]
    for made in (dataset, pickle.loads(pickle.dumps(dataset)), opened(data)):
        assert [made.sample(row).parts() for row in range(made.num_rows)] == expected
        assert (made.fingerprint, made.sets) == (dataset.fingerprint, dataset.sets)


def test_the_same_rows_come_from_files_and_from_a_folder(sets):
    """A glob of parquet files has the rows of the set, and chooses the same of them."""
    files = {name: f"{path}/data/train-*.parquet" for name, path in sets.items()}
    mixed = [{"path": files[name], **share} for name, share in FIVE.items()]
    found = opened(CLASSES["chat"](kind="chat", mixture=mixed))
    assert [each.fingerprint for each in found.sets] == [each.fingerprint for each in opened(mixture(sets)).sets]


# -- sources


def test_columns_are_chosen_and_renamed(sets, tmp_path):
    """A list keeps columns. A mapping gives them planner's names, also in rows of JSON."""
    source = RowSource(path=sets["beta"], columns=["extra"])
    assert [row.fields for row in open_rows(source).read()] == [{"extra": number} for number in range(37)]
    path = tmp_path / "rows.jsonl"
    path.write_text('{"q": "a", "a": "b", "prompt": "no"}\n{"q": "c", "a": null}\n')
    found = open_rows(RowSource(path=str(path), columns={"prompt": "q", "completion": "a"})).read()
    assert [row.fields for row in found] == [{"prompt": "a", "completion": "b"}, {"prompt": "c"}]


def test_a_column_that_is_not_there_is_refused(sets, tmp_path):
    """A table says which it has. Rows of JSON are all read before."""
    with pytest.raises(DataError, match=r"data.columns: .*beta train has no column mesages. It has extra, messages"):
        list(open_rows(RowSource(path=sets["beta"], columns=["mesages"])).read())
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "tools": null}\n')
    assert len(list(open_rows(RowSource(path=str(path), columns=["text", "tools"])).read())) == 1
    with pytest.raises(DataError, match=r"data.columns: no row of .*rows.jsonl has txt. Correct the names"):
        list(open_rows(RowSource(path=str(path), columns=["txt"])).read())


def test_a_split_may_be_a_part(sets):
    """The datasets library's own way to write it."""
    assert open_rows(RowSource(path=sets["alpha"], split="train[:10%]+test")).count() == 15
    assert open_rows(RowSource(path=sets["alpha"])).count() == 100


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"config": "DPO"}, r"cannot load .*alpha DPO: BuilderConfig 'DPO' not found. Available: \['SFT'\]$"),
        ({"split": "dev"}, r"cannot load .*alpha dev: Unknown split \"dev\". Should be one of \['train', 'test'\]$"),
    ],
)
def test_what_a_set_lacks_is_named(sets, keys, reason):
    """With what it has."""
    with pytest.raises(DataError, match=reason):
        open_rows(RowSource(path=sets["alpha"], **keys))


def test_a_set_with_several_configurations_names_them(tmp_path):
    """The user is not sent to a glob."""
    path = Path(write_set(tmp_path / "two", "chat", 3))
    card = (path / "README.md").read_text()
    more = "- config_name: Mid\n  data_files: data/test-*\n"
    (path / "README.md").write_text(card.replace("---\n# A", f"{more}---\n# A"))
    for split in (None, "train"):
        with pytest.raises(DataError, match=r"^data.config: .*two( train)? has several. Write one of 'SFT', 'Mid'$"):
            open_rows(RowSource(path=str(path), split=split))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"revision": "v1"}, r"^data.revision: .*alpha is here, and only a data set of the hub has a revision"),
        ({"folder": "../beta"}, r"^data.folder: ../beta is not a folder below .*alpha\. Write one"),
        ({"folder": "/etc"}, r"^data.folder: /etc is not a folder below"),
    ],
)
def test_a_folder_is_what_is_in_it(sets, keys, reason):
    """The library ignores a revision, and would read files that planner does not look at for changes."""
    with pytest.raises(DataError, match=reason):
        open_rows(RowSource(path=sets["alpha"], **keys))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no json\n", r"cannot load .*broken train: JSON parse error: Invalid value"),
        ('{"other": 1}\n', r"cannot load .*broken train: Couldn't cast other: .* because column names don't match"),
    ],
)
def test_the_reason_of_the_library_is_named(tmp_path, text, reason):
    """It says itself only that an error occurred."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train-0.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "broken" / "train-1.jsonl").write_text(text)
    with pytest.raises(DataError, match=reason):
        open_rows(RowSource(path=str(tmp_path / "broken"), split="train"))


@pytest.mark.parametrize("key", ["config", "revision"])
def test_files_have_no_configuration(sets, key):
    """A file is what it is."""
    with pytest.raises(DataError, match=rf"data.{key}: .* only a data set of the hub has a {key}. Leave it out"):
        open_rows(RowSource(path=f"{sets['alpha']}/data/train-*.parquet", **{key: "x"}))


# -- names on the hub, without a network


@pytest.mark.parametrize(
    ("path", "is_name"),
    [
        ("HuggingFaceTB/smoltalk2", True),
        ("org/name.v1_x-y", True),
        ("data/rows.jsonl", False),
        ("data/*.jsonl", False),
        ("/org/name", False),
        ("./name", False),
        ("name", False),
        ("a/b/c", False),
        ("s3://org", False),
        ("tests/data", False),
    ],
)
def test_what_is_a_name_on_the_hub(path, is_name, monkeypatch):
    """The form owner/name, if nothing is there."""
    monkeypatch.chdir(Path(__file__).parents[2])
    assert is_hub_name(path) is is_name


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def in_cache(tmp_path, monkeypatch):
    """The set org/zeta in the library's cache, as a download leaves it, and no network."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    loaded = datasets.load_dataset(write_set(tmp_path / "zeta", "chat", 20), "SFT", cache_dir=str(cache))
    made = Path(loaded["train"].cache_files[0]["filename"]).parent
    shutil.copytree(made, cache / "org___zeta" / "SFT" / "0.0.0" / COMMIT)


@pytest.mark.usefixtures("in_cache")
def test_a_name_is_read_from_the_cache(tmp_path):
    """Rows, stamps and samples are those of the folder that was published."""
    data = CLASSES["chat"](kind="chat", path="org/zeta", config="SFT", split="train")
    assert opened(data).fingerprint == opened(CLASSES["chat"](kind="chat", path=str(tmp_path / "zeta"))).fingerprint
    assert COMMIT in data_stamps(data)[0][0]
    assert placed(data) == data  # the hub cannot say which commit it is


@pytest.mark.usefixtures("in_cache")
def test_a_commit_that_is_not_in_the_cache_is_refused():
    """The library would use any other commit that is there, and only say so."""
    there = RowSource(path="org/zeta", config="SFT", split="train", revision=COMMIT)
    assert open_rows(there).count() == 20
    gone = there.model_copy(update={"revision": "f" * 40})
    with pytest.raises(DataError, match=rf"org/zeta: the cache has another commit than f{{40}}, .*{COMMIT}"):
        open_rows(gone)


@pytest.mark.usefixtures("in_cache")
def test_a_name_that_is_nowhere_is_refused():
    """It may be a folder that is not there."""
    with pytest.raises(DataError, match=r"no file or folder at 'data/pairs', and no such data set in the hub's cache"):
        open_rows(RowSource(path="data/pairs"))
