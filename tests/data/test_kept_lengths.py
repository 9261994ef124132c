"""The lengths of rows on demand: those of rows tokenized ahead, found once on a machine, and held to the samples."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from byte_models import gpt
from fixed_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rows_of import CLASSES, all_parts, assistant, user
from tiny_tokenizers import byte_level

from planner.data import kept_lengths, lazy_rows, lazy_sets, sample_cache
from planner.data.base import no_progress
from planner.data.evaluation import training_part
from planner.data.longest import require_fitting
from planner.data.open import open_dataset
from planner.data.pairs import PairRows
from planner.data.shared_array import SharedArray
from planner.errors import DataError
from planner.job import HfModel, Job
from planner.provenance.identity import identity_of, open_data
from planner.runner.length_costs import length_costs

PAIRS = [{"prompt": "p" * n, "chosen": f"yes {n}" * n, "rejected": "no"} for n in range(1, 10)]


def write(rows, folder, name="rows.jsonl"):
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def measured(kind, model, progress=no_progress, **settings):
    found = open_dataset(CLASSES[kind](kind=kind, tokenize="on_demand", **settings), model)
    return found.measured(progress)


def pairs_at(path, **settings):
    return measured("pairs", gpt(50), path=path, **settings)


def listed(dataset):
    return [each.tolist() for each in dataset.lengths(np.arange(dataset.num_rows))]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """A model folder with a tokenizer and a chat template."""
    return HfModel(kind="hf", path=str(byte_level(tmp_path_factory.mktemp("model"))), context=40)


words = st.text(st.sampled_from("abc é日\n"), min_size=1, max_size=30).filter(str.strip)
turns = st.lists(st.tuples(words, words), min_size=1, max_size=2).map(
    lambda turns: {"messages": [turn for a, b in turns for turn in (user(a), assistant(b))]}
)
answered = {"prompt": words, "chosen": words.map("a".__add__), "rejected": words.map("b".__add__)}
labelled = {"prompt": words, "completion": words, "label": st.booleans()}
ROWS = {
    "chat": st.lists(turns, min_size=1, max_size=8),
    "pairs": st.lists(st.fixed_dictionaries(answered), min_size=1, max_size=8),
    "feedback": st.lists(
        st.fixed_dictionaries({"prompt": words, "completion": words, "label": st.booleans()}), min_size=1
    ),
    "pairs as feedback": st.lists(st.fixed_dictionaries(answered), min_size=1, max_size=8),
}
SHARES = st.sampled_from([{}, {"fraction": 0.5}, {"rows": 3}, {"fraction": 2.5}])


@examples(60)
@given(
    shape=st.sampled_from(sorted(ROWS)),
    data=st.data(),
    is_hf=st.booleans(),
    cut=st.sampled_from([{}, {"max_prompt": 3}, {"max_prompt": 4, "cut_prompt": "end"}]),
    shares=st.none() | st.lists(SHARES, min_size=1, max_size=3),
    piece=st.sampled_from([1, 3, 2**16]),
    batch=st.sampled_from([1, 2, 1000]),
)
def test_lengths_are_those_of_rows_tokenized_ahead(
    tmp_path_factory, tokens, shape, data, is_hf, cut, shares, piece, batch
):
    """Every kind of rows and model, cut rows, and sets of which an epoch uses a part, or rows several times."""
    kind, folder = shape.rsplit(maxsplit=1)[-1], tmp_path_factory.mktemp("rows")
    paths = [write(data.draw(ROWS[shape]), folder, f"{n}.jsonl") for n in range(len(shares or "1"))]
    mixture = [{"path": path, **share} for path, share in zip(paths, shares or (), strict=False)]
    settings = {"seed": 1, "mixture": mixture, **cut} if shares else {"path": paths[0], **cut}
    model = tokens if is_hf else gpt(24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_lengths, "_LEAST_ROWS", piece)
        patch.setattr(lazy_rows, "_ROWS_PER_BATCH", batch)
        try:
            ahead = open_dataset(CLASSES[kind](kind=kind, **settings), model)
        except DataError:
            with pytest.raises(DataError):
                measured(kind, model, **settings)
            return
        found = measured(kind, model, **settings)
    assert listed(found) == listed(ahead)
    assert all_parts_of(found) == all_parts_of(ahead)
    turned = np.arange(found.num_rows)[::-1].repeat(2)
    assert [each.tolist() for each in found.lengths(turned)] == [each.tolist() for each in ahead.lengths(turned)]
    plain = open_dataset(CLASSES[kind](kind=kind, tokenize="on_demand", **settings), model)
    assert listed(plain) == listed(ahead)
    assert plain.fingerprint != found.fingerprint == measured(kind, model, **settings).fingerprint
    assert [(each.name, each.num_rows) for each in found.sets] == [(each.name, each.num_rows) for each in plain.sets]


def all_parts_of(dataset):
    return [sample.parts() for sample in dataset.samples(range(dataset.num_rows))]


def test_other_lengths_are_other_data(tmp_path):
    """One sample is longer, or the same lengths are in another order."""
    first = pairs_at(write(PAIRS, tmp_path))
    kept = first.parts[0].kept
    for name in ("tokens", "squares"):
        arrays = dict(kept.pieces[0].arrays)
        changed = arrays[name].array.copy()
        changed[2] += 1
        arrays[name] = SharedArray.new("<i8")
        arrays[name].append(changed)
        piece = kept_lengths.LengthsPiece(**arrays)
        assert kept_lengths.KeptLengths(pieces=(piece,), piece_size=kept.piece_size).digest != kept.digest


def test_a_loader_process_has_the_same_lengths(tmp_path):
    """A copy by pickle maps them."""
    found = pairs_at(write(PAIRS, tmp_path))
    again = pickle.loads(pickle.dumps(found))
    assert listed(again) == listed(found)
    assert all_parts(again) == all_parts(found)


# -- on disk


@pytest.fixture
def pieces(monkeypatch, tmp_path):
    """The first rows of the pieces that were measured, of sets whose pieces have three rows."""
    monkeypatch.setenv("PLANNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sample_cache, "LEAST_BYTES", 0)
    monkeypatch.setattr(kept_lengths, "_LEAST_ROWS", 3)
    found, piece = [], lazy_rows.LazyRows._piece

    def noted(part, rows, tell):
        found.append(rows.start)
        return piece(part, rows, tell)

    monkeypatch.setattr(lazy_rows.LazyRows, "_piece", noted)
    return found


def folders(tmp_path):
    return sorted((tmp_path / "cache" / "row-lengths").glob("*/"))


def test_lengths_are_found_once_on_a_machine(tmp_path, pieces):
    """Only lengths are kept. Another setting that samples depend on has its own."""
    first = pairs_at(path := write(PAIRS, tmp_path))
    again = pairs_at(path)
    assert pieces == [0, 3, 6]
    assert (listed(again), again.fingerprint) == (listed(first), first.fingerprint)
    kept = {file.name for place in folders(tmp_path) for file in place.iterdir()}
    assert (len(folders(tmp_path)), kept) == (3, {"set.json", "tokens", "squares"})
    assert not (tmp_path / "cache" / "samples").exists()
    pairs_at(path, max_prompt=3)
    assert pieces == [0, 3, 6] * 2


def test_a_start_that_was_stopped_continues(tmp_path, pieces):
    """With the piece that it was at."""

    def stops(done, _of):
        if done >= 6:
            raise KeyboardInterrupt

    path = write(PAIRS, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        pairs_at(path, progress=stops)
    told = []
    found = pairs_at(path, progress=lambda *step: told.append(step))
    assert pieces == [0, 3, 6, 6]
    assert told[-1] == (6, 9)
    assert listed(found) == listed(open_dataset(CLASSES["pairs"](kind="pairs", path=path), gpt(50)))


@pytest.mark.parametrize("harm", ["altered", "shortened", "lost", "another format"])
def test_a_damaged_piece_is_measured_again(harm, tmp_path, pieces, caplog):
    """And is whole afterwards."""
    # The file is mapped, so the data set that has it changes with it.
    first = pairs_at(path := write(PAIRS, tmp_path))
    lengths, place = listed(first), folders(tmp_path)[0]
    match harm:
        case "altered":
            (place / "tokens").write_bytes(b"\1" + (place / "tokens").read_bytes()[1:])
        case "shortened":
            (place / "squares").write_bytes((place / "squares").read_bytes()[:-3])
        case "lost":
            (place / "tokens").unlink()
        case _:
            facts = json.loads((place / "set.json").read_text())
            (place / "set.json").write_text(json.dumps({**facts, "format": 2}))
    for _ in range(2):
        again = pairs_at(path)
        assert (listed(again), again.fingerprint) == (lengths, first.fingerprint)
    assert len(pieces) == 4
    assert ("so rows are tokenized again" in caplog.text) == (harm == "another format")


def test_a_changed_file_is_measured_again(tmp_path, pieces):
    """Its time of change is enough."""
    pairs_at(path := write(PAIRS, tmp_path))
    os.utime(path, ns=(1, 1))
    pairs_at(path)
    assert pieces == [0, 3, 6] * 2


def test_a_set_has_a_bounded_number_of_pieces(tmp_path, pieces, monkeypatch):
    """A mixture's sets must all stay in the cache."""
    monkeypatch.setattr(kept_lengths, "MOST_PIECES", 2)
    pairs_at(write(PAIRS, tmp_path))
    assert pieces == [0, 5]


# -- samples that have other lengths than were kept


def rewritten(path, old, new):
    """Change a file of rows, without a trace in its size and time."""
    assert len(old) == len(new)
    before = Path(path).stat().st_mtime_ns
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))
    os.utime(path, ns=(before, before))


@pytest.mark.parametrize("asked", [[4], [8, 4, 0]])
def test_a_row_with_another_length_is_refused(tmp_path, asked):
    """The error names the row and both numbers. Other rows can be read."""
    found = pairs_at(path := write(PAIRS, tmp_path))
    before = listed(found)
    rewritten(path, '"yes 5y', r'"\u0020')
    tokens = before[0][4]
    says = rf"rows.jsonl:5 has {tokens - 5} tokens, and had {tokens} when the lengths of all rows were found. Restore"
    with pytest.raises(DataError, match=says):
        found.samples(asked)
    with pytest.raises(DataError, match=says):
        found.evidence(4)
    assert listed(found) == before
    assert len(found.samples([3, 5])) == 2
    assert pairs_at(path).fingerprint != found.fingerprint


def test_sequences_that_exchange_tokens_are_refused(tmp_path):
    """A pair has as many tokens, and its attention costs something else."""
    found = pairs_at(path := write(PAIRS, tmp_path))
    rewritten(path, '"yes 1", "rejected": "no"', '"no", "rejected": "yes 1"')
    assert found.sample(0)
    rewritten(path, '"no", "rejected": "yes 1"', '"noo", "rejected": "yes "')
    with pytest.raises(DataError, match=r"rows.jsonl:1 has 11 tokens in sequences of other lengths than when"):
        found.sample(0)


# -- bad rows


def test_all_bad_rows_are_found_at_the_start(tmp_path, monkeypatch):
    """Not when a step needs them. Rows that no epoch uses are not tokenized."""
    monkeypatch.setattr(lazy_sets, "_TRIED", 1)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 1)
    monkeypatch.setattr(lazy_rows, "_ROWS_PER_BATCH", 2)
    bad = [row | {"chosen": "no"} if n in (3, 4, 7) else row for n, row in enumerate(PAIRS)]
    path = write(bad, tmp_path)
    with pytest.raises(DataError) as refused:
        pairs_at(path)
    assert "3 of 9 rows that were tokenized cannot be used" in str(refused.value)
    assert "data.tokenize: ahead with data.bad_rows: skip" in str(refused.value)
    assert str(refused.value).count("rows.jsonl, byte") == 3
    seeds = [seed for seed in range(20) if not {3, 4, 7} & set(chosen(path, seed))]
    assert seeds
    found = measured("pairs", gpt(50), mixture=[{"path": path, "rows": 2}], seed=seeds[0])
    assert len(listed(found)[0]) == 2


def chosen(path, seed):
    data = CLASSES["pairs"](kind="pairs", tokenize="on_demand", mixture=[{"path": path, "rows": 2}], seed=seed)
    return open_dataset(data, gpt(50)).parts[0].chosen.array.tolist()


def test_rows_that_give_other_numbers_of_samples_are_refused(tmp_path, monkeypatch):
    """A row is found by its number. So it is when lengths are found, wherever the row is."""
    monkeypatch.setattr(lazy_sets, "_TRIED", 1)
    monkeypatch.setattr(lazy_sets, "_LEAST_TRIED", 1)
    examples_of = PairRows.examples

    def twice(rows, found):
        return examples_of(rows, found) * (2 if found.prompt == "p" * 7 else 1)

    monkeypatch.setattr(PairRows, "examples", twice)
    with pytest.raises(DataError, match="needs the same number of samples of each row"):
        pairs_at(write(PAIRS, tmp_path))


# -- jobs


def job_of(path, *, max_tokens=None, tokenize="on_demand", **sections):
    return Job.model_validate(
        {
            "name": "test",
            "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 50},
            "data": {"kind": "pairs", "path": path, "tokenize": tokenize},
            "objective": "dpo",
            "batch": {"global": 3, "max_micro": 2, "max_tokens": max_tokens},
            "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
            **sections,
        }
    )


def test_a_job_without_max_tokens_finds_no_lengths(tmp_path, pieces):
    """Its data is known as before."""
    job = job_of(path := write(PAIRS, tmp_path))
    dataset, order = open_data(job)
    assert pieces == []
    assert dataset.fingerprint == open_dataset(job.data, job.model).fingerprint
    limited = [job_of(path, max_tokens=most) for most in (120, 130)]
    opened = [open_data(each) for each in limited]
    assert pieces == [0, 3, 6]
    assert len({each[0].fingerprint for each in opened} - {dataset.fingerprint}) == 1
    found = {identity_of(each, *data).data for each, data in zip(limited, opened, strict=True)}
    assert len(found - {identity_of(job, dataset, order).data}) == 1


def test_rows_for_evaluation_have_lengths_too(tmp_path):
    """Those of `eval.data` are tokenized ahead, and follow."""
    path, other = write(PAIRS, tmp_path), write(PAIRS[:3], tmp_path, "other.jsonl")
    found = [
        open_data(job_of(path, max_tokens=120, tokenize=how, eval={"data": {"path": other}}))[0]
        for how in ("ahead", "on_demand")
    ]
    assert listed(found[0]) == listed(found[1])
    assert found[0].num_rows == 12
    assert training_part(found[1]).parts[0].kept


def test_a_sample_that_is_too_long_is_refused_at_the_start(tmp_path):
    """As of rows tokenized ahead."""
    refused = []
    for tokenize in ("ahead", "on_demand"):
        job = job_of(write(PAIRS, tmp_path), max_tokens=20, tokenize=tokenize)
        with pytest.raises(DataError) as error:
            require_fitting(job, open_data(job)[0])
        refused.append(str(error.value))
    assert "the most of all, and a micro-batch takes 20" in refused[0]
    assert refused[0] == refused[1]


@pytest.mark.parametrize("max_tokens", [None, 120])
def test_costs_of_lengths_are_those_of_rows_tokenized_ahead(tmp_path, pieces, max_tokens):
    """`planner plan --lengths`. Without a limit, only the rows of the first steps are tokenized."""
    path = write(PAIRS, tmp_path)
    ahead, on_demand = (
        length_costs(job_of(path, max_tokens=max_tokens, tokenize=how), [1, 2]) for how in ("ahead", "on_demand")
    )
    assert on_demand == ahead
    assert pieces == ([0, 3, 6] if max_tokens else [])


def test_a_plan_by_a_relative_path_finds_the_lengths_that_a_run_takes(tmp_path, pieces, monkeypatch):
    """A run opens its data by absolute paths."""
    path = write(PAIRS, tmp_path)
    monkeypatch.chdir(tmp_path)
    length_costs(job_of("rows.jsonl", max_tokens=120), [1])
    open_data(job_of(path, max_tokens=120))
    assert pieces == [0, 3, 6]
