"""What the ledger says of mixtures and evaluations, and what a resume and the audit make of it."""

import json
from pathlib import Path

import pytest
from made_up_runs import MadeUpRun, make_job
from verifiers import audited, run_script

from planner.errors import ResumeRefused
from planner.events.resuming import EvaluationChanged
from planner.job import Job
from planner.order.order import Order
from planner.provenance.data_facts import data_facts, evaluation_changes, set_changes
from planner.provenance.identity import identity_of, job_changes, open_data, require_same
from planner.report.audits import verdict

OBJECTIVE = {"kind": "sft"}


def write(path, number):
    rows = ({"prompt": path.stem, "completion": f"{n} {'ab' * (n % 5)}"} for n in range(number))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path.name


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with sets of 10, 7 and 5 rows. Paths of jobs are relative to it."""
    monkeypatch.chdir(tmp_path)
    for name, number in (("a", 10), ("b", 7), ("test", 5)):
        write(tmp_path / f"{name}.jsonl", number)
    return tmp_path


def mixture(*sets, **sections):
    data = {"kind": "chat", "mixture": list(sets)}
    return make_job(data, **{"model": {"context": 16}, "objective": OBJECTIVE, "train": {"steps": 12}, **sections})


def facts_of(job):
    return data_facts(*open_data(job))


def edit(path, old, new):
    path.write_text(path.read_text().replace(old, new))


# -- facts


@pytest.mark.usefixtures("here")
def test_each_set_is_on_record_with_its_rows_and_fingerprint():
    """Also how many of its rows are held out. One data set alone needs no such fact."""
    job = mixture("a.jsonl", {"path": "b.jsonl", "rows": 14}, eval={"samples": "25%"})
    facts = facts_of(job)
    assert [(each["name"], each["rows"], each["evaluated"]) for each in facts["sets"]] == [
        ("a.jsonl", 10, 3),
        ("b.jsonl", 14, 3),
    ]
    assert len({each["fingerprint"] for each in facts["sets"]}) == 2
    assert json.loads(json.dumps(facts)) == facts
    assert facts_of(make_job({"kind": "chat", "path": "a.jsonl"}, objective=OBJECTIVE, eval={"samples": 2})) == {}


def test_a_mixture_at_another_path_is_the_same_data(here):
    """As one data set is."""
    (here / "sub").mkdir()
    (here / "sub" / "b.jsonl").write_bytes((here / "b.jsonl").read_bytes())
    jobs = [mixture("a.jsonl", "b.jsonl"), mixture("a.jsonl", str(here / "sub" / "b.jsonl"))]
    assert len({identity_of(job, *open_data(job)).data for job in jobs}) == 1


CHANGES = {
    "b.jsonl has 6 rows and had 7": [("a.jsonl",), ("b.jsonl", 6)],
    "b.jsonl has other content": [("a.jsonl",), ("b.jsonl", "other")],
    "b.jsonl is gone": [("a.jsonl",)],
    "test.jsonl is new": [("a.jsonl",), ("b.jsonl",), ("test.jsonl",)],
    "the sets are in another order": [("b.jsonl",), ("a.jsonl",)],
}


@pytest.mark.parametrize("text", CHANGES)
def test_a_refused_resume_says_which_set_changed(here, text):
    """And an unchanged mixture is not refused."""
    before = mixture("a.jsonl", "b.jsonl")
    old, old_facts = identity_of(before, *open_data(before)), facts_of(before)
    for path, *change in CHANGES[text]:
        if change == ["other"]:
            edit(here / path, '"prompt": "b"', '"prompt": "c"')
        elif change:
            write(here / path, *change)
    now = mixture(*(path for path, *_ in CHANGES[text]))
    new, facts = identity_of(now, *open_data(now)), (old_facts, facts_of(now))
    assert set_changes(*facts) == [text]
    with pytest.raises(ResumeRefused, match=text):
        require_same(old, new, job_changes(before, now), frozenset(), "run", facts=facts)
    assert require_same(old, old, [], frozenset(), "run", facts=(old_facts, old_facts)) == []


def test_many_changed_sets_are_counted(here):
    """The error stays short."""
    names = [write(here / f"set{number}.jsonl", 3) for number in range(9)]
    facts = facts_of(mixture("a.jsonl")), facts_of(mixture("a.jsonl", *names))
    assert set_changes(*facts) == [*(f"set{number}.jsonl is new" for number in range(5)), "and 4 sets more"]


@pytest.mark.usefixtures("here")
def test_a_setting_that_was_null_is_shown_as_a_job_file_has_it():
    """Not as Python does."""
    batch = {"global": 4, "max_micro": 2}
    before, now = mixture("a.jsonl", batch=batch), mixture("a.jsonl", batch={**batch, "max_tokens": 64})
    (change,) = job_changes(before, now)
    assert (change.setting, change.before, change.now) == ("batch.max_tokens", "null", "64")


@pytest.mark.usefixtures("here")
def test_a_changed_setting_of_a_mixture_names_one_set():
    """The whole list of sets would hide what changed."""
    before = mixture("a.jsonl", {"path": "b.jsonl", "fraction": 0.5})
    now = mixture("a.jsonl", {"path": "b.jsonl", "fraction": 0.6})
    assert [str(change.setting) for change in job_changes(before, now)] == ["data.mixture[1].fraction"]
    more = job_changes(before, mixture("a.jsonl", {"path": "b.jsonl", "fraction": 0.5}, "test.jsonl"))
    assert [(change.setting, change.before, change.now) for change in more] == [
        ("data.mixture[2].path", "nothing", "test.jsonl")
    ]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("data", {"tokenize": "on_demand"}, "data.tokenize: ahead -> on_demand"),
        ("model", {"context": 8}, "model.context: 16 -> 8"),
    ],
)
def test_a_setting_of_all_sets_is_the_only_reason(section, values, reason):
    """Every set has another fingerprint then, though nobody changed its rows."""
    before = mixture("a.jsonl", "b.jsonl")
    stored = json.loads(before.model_dump_json(by_alias=True))
    now = Job.model_validate({**stored, section: stored[section] | values})
    identities = [identity_of(job, *open_data(job)) for job in (before, now)]
    with pytest.raises(ResumeRefused, match=rf"\({reason}\)"):
        require_same(*identities, job_changes(before, now), frozenset(), "run", facts=(facts_of(before), facts_of(now)))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("sets", [("a.jsonl",), ("a.jsonl", "b.jsonl")])
@pytest.mark.parametrize("limits", [(None, 40), (40, None)])
def test_lengths_are_a_part_of_rows_on_demand(sets, limits):
    """No set is said to have other rows. Another limit changes nothing."""
    jobs = [on_demand(*sets, max_tokens=limit) for limit in limits]
    identities = [identity_of(job, *open_data(job)) for job in jobs]
    changes, facts = job_changes(*jobs), tuple(map(facts_of, jobs))
    with pytest.raises(ResumeRefused, match=r"\(batch.max_tokens: (null|40) -> (null|40), and with it data") as refused:
        require_same(*identities, changes, frozenset(), "run", facts=facts)
    assert "jsonl has" not in str(refused.value)
    assert require_same(*identities, changes, frozenset(["data"]), "run", facts=facts)
    other = on_demand(*sets, max_tokens=50)
    assert identity_of(other, *open_data(other)) in identities


def test_a_set_that_changed_is_named_though_a_limit_was_set(here):
    """Of rows tokenized ahead. The other set is as it was, so lengths are not the reason."""
    before = mixture("a.jsonl", "b.jsonl")
    old = identity_of(before, *open_data(before)), facts_of(before)
    now = mixture("a.jsonl", "b.jsonl", batch={"max_tokens": 40})
    write(here / "b.jsonl", 6)
    new = identity_of(now, *open_data(now)), facts_of(now)
    with pytest.raises(ResumeRefused, match=r"\(b.jsonl has 6 rows and had 7\)") as refused:
        require_same(old[0], new[0], job_changes(before, now), frozenset(), "run", facts=(old[1], new[1]))
    assert "lengths" not in str(refused.value)


def on_demand(*sets, max_tokens):
    job = mixture(*sets)
    stored = json.loads(job.model_dump_json(by_alias=True))
    batch = {**stored["batch"], "max_tokens": max_tokens}
    return Job.model_validate({**stored, "data": stored["data"] | {"tokenize": "on_demand"}, "batch": batch})


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("sets", [None, 3, [3], [{"name": "a"}], {"sets": []}])
def test_facts_that_cannot_be_read_count_as_none(sets):
    """Another version of planner, or a stranger, may have written them."""
    now = facts_of(mixture("a.jsonl", "b.jsonl", eval={"data": {"path": "test.jsonl"}}))
    assert set_changes({"sets": sets}, now) == []
    assert evaluation_changes({"evaluation": sets}, now) == []


# -- another evaluation


def with_evaluation(**evaluation):
    return mixture("a.jsonl", "b.jsonl", eval={"data": {"mixture": ["test.jsonl"]}, **evaluation})


def test_another_evaluation_is_noted_and_not_refused(here):
    """The samples to train on are the same."""
    before = with_evaluation()
    old, old_facts = identity_of(before, *open_data(before)), facts_of(before)
    write(here / "test.jsonl", 4)
    new, facts = identity_of(before, *open_data(before)), (old_facts, facts_of(before))
    assert require_same(old, new, [], frozenset(), "run", facts=facts) == []
    assert evaluation_changes(*facts) == [EvaluationChanged(before=5, now=4, sets="test.jsonl has 4 rows and had 5")]
    assert evaluation_changes(old_facts, old_facts) == []


@pytest.mark.usefixtures("here")
def test_an_evaluation_instead_of_held_out_rows_is_other_data():
    """Then all rows are trained on."""
    before, now = mixture("a.jsonl", eval={"samples": 2}), mixture("a.jsonl", eval={"data": {"path": "test.jsonl"}})
    (old, old_facts), (new, new_facts) = ((identity_of(job, *open_data(job)), facts_of(job)) for job in (before, now))
    with pytest.raises(ResumeRefused, match=r"eval.data.path: nothing -> test.jsonl; .*eval.samples: 2 -> 0\)"):
        require_same(old, new, job_changes(before, now), frozenset(), "run", facts=(old_facts, new_facts))


def test_settings_of_an_evaluation_apart_are_no_reason_for_other_data(here):
    """If the data changed as well, the error names the data alone."""
    before, now = with_evaluation(), with_evaluation(samples=3)
    old, old_facts = identity_of(before, *open_data(before)), facts_of(before)
    write(here / "a.jsonl", 9)
    new, facts = identity_of(now, *open_data(now)), (old_facts, facts_of(now))
    with pytest.raises(ResumeRefused, match=r"another data \(a.jsonl has 9 rows and had 10\)"):
        require_same(old, new, job_changes(before, now), frozenset(), "run", facts=facts)


# -- the audit


def made_up(here, job):
    """A run of two generations. Its mixture of 17 rows has two whole epochs."""
    made = MadeUpRun(here, job=job)
    evaluate = made.evaluate if job.eval.is_on else lambda: made
    made.begin(2)
    evaluate().steps(5).commit()
    made.begin(3, made.name).steps(7)
    return evaluate().commit()


def test_the_audit_counts_the_samples_of_each_set(here):
    """12 steps of 3 samples: two whole epochs, and 2 samples of the third."""
    made_up(here, mixture("a.jsonl", "b.jsonl"))
    found = audited(here / "run")
    assert found.clean, found.findings
    assert [(use.name, use.samples, use.whole_epochs) for use in found.sets] == [("a.jsonl", 10, 2), ("b.jsonl", 7, 2)]
    assert sum(use.after for use in found.sets) == 2
    assert [line for line in verdict(found) if line.startswith("set  ")] == [
        "set           a.jsonl: all 10 samples once in each of 2 whole epochs",
        "set           b.jsonl: all 7 samples once in each of 2 whole epochs, 2 in the next",
    ]


def test_held_out_rows_are_in_no_count(here):
    """An epoch has the rows that are left."""
    made_up(here, mixture("a.jsonl", "b.jsonl", eval={"samples": "30%", "every": 6}))
    found = audited(here / "run")
    assert found.clean, found.findings
    assert [(use.samples, use.whole_epochs) for use in found.sets] == [(6, 3), (5, 3)]
    assert sum(use.after for use in found.sets) == 36 - 3 * 11


def test_an_order_that_is_unfair_to_a_set_is_found(here, monkeypatch):
    """A row of one set in the place of another's would train on both wrongly. The count says so."""
    job = mixture("a.jsonl", "b.jsonl")
    rows = Order.rows

    def unfair(self, start, stop):
        found = rows(self, start, stop)
        found[found == 16] = 0
        return found

    monkeypatch.setattr(Order, "rows", unfair)
    made_up(here, job)
    found = audited(here / "run")
    assert "epoch 0 used 11 samples of a.jsonl, which has 10" in found.findings
    assert "epoch 1 used 6 samples of b.jsonl, which has 7" in found.findings


def test_the_audit_says_which_set_is_not_what_it_was(here):
    """As a resume does."""
    made_up(here, mixture("a.jsonl", "b.jsonl"))
    write(here / "b.jsonl", 6)
    found = audited(here / "run")
    assert found.findings[0] == (
        "generation 1: the data is not what it was trained on (b.jsonl has 6 rows and had 7), so its samples cannot be "
        "checked"
    )
    assert found.sets == ()


def test_sets_on_record_must_be_those_of_the_data(here):
    """The identity of the data does not cover the names, which people read."""
    made = MadeUpRun(here, job=mixture("a.jsonl", "b.jsonl"))
    facts = facts_of(made.job)
    facts["sets"][0]["name"] = "z.jsonl"
    made.begin(2, facts=facts).steps(2).commit()
    assert "generation 1: the sets on record are not those of its data" in audited(here / "run").findings


EVALUATIONS = {"all": {}, "some": {"samples": 3}, "a part": {"samples": "21%"}}


@pytest.mark.parametrize("name", EVALUATIONS)
@pytest.mark.parametrize("data", [{"path": "test.jsonl"}, {"mixture": ["test.jsonl", "b.jsonl"]}])
def test_evaluations_apart_are_recomputed(here, name, data):
    """The audit is clean, and not any more once the file has another row."""
    job = mixture("a.jsonl", eval={"data": data, "every": 12, **EVALUATIONS[name]})
    made_up(here, job)
    found = audited(here / "run")
    assert found.clean, found.findings
    edit(here / "test.jsonl", '"0 ', '"09 ')
    changed = "" if "path" in data else " (test.jsonl has other content)"
    (finding,) = audited(here / "run").findings
    assert finding == (
        f"generation 1: the data of eval.data is not what it was evaluated on{changed}, so its evaluations cannot be "
        "checked"
    )


def test_a_wrong_number_of_samples_is_found(here):
    """Also if only the data tells how many they are."""
    job = mixture("a.jsonl", eval={"data": {"path": "test.jsonl"}, "every": 12})
    made = MadeUpRun(here, job=job)
    order = made._order
    made._order = Order(num_rows=order.num_rows, num_held_out=4, seed=order.seed, is_apart=True)
    made.begin(2, facts=facts_of(job)).evaluate().steps(12).commit()
    assert audited(here / "run").findings == (
        "the evaluation before step 0: it has 4 samples on record, and its job says 5",
        "the evaluation before step 0: it has 24 tokens on record, and the held-out samples 35",
    )


# -- the script


SINGLE = {"kind": "chat", "path": "a.jsonl"}


def single(**evaluation):
    return make_job(
        SINGLE, model={"context": 16}, objective=OBJECTIVE, train={"steps": 12}, eval={"every": 12, **evaluation}
    )


@pytest.mark.parametrize(
    "evaluation", [{"samples": "15%"}, *({"data": {"path": "test.jsonl"}, **e} for e in EVALUATIONS.values())]
)
def test_the_script_recomputes_evaluations(here, evaluation):
    """Of held-out rows, of all rows of a data set of its own, and of some."""
    made_up(here, single(**evaluation))
    assert audited(here / "run").clean
    code, text = run_script(here / "run")
    assert (code, text.splitlines()[-1].startswith("verify_run: clean")) == (0, True), text
    changed = "test.jsonl" if "data" in evaluation else "a.jsonl"
    edit(here / changed, '"0 ', '"9 ')
    code, text = run_script(here / "run")
    assert code == 1
    wrong = "is not what it was evaluated on" if "data" in evaluation else "is not what it was trained on"
    assert wrong in text


def test_the_script_reads_a_strangers_evaluation_only_where_it_is_told(here):
    """With --data alone it says that the samples of evaluations were not checked."""
    made_up(here, single(data={"path": "test.jsonl"}))
    code, text = run_script(here / "run", "--data", "a.jsonl")
    assert code == 3
    assert "samples of evaluations NOT CHECKED: with --data, eval.data is read only where --eval-data says" in text
    assert run_script(here / "run", "--data", "a.jsonl", "--eval-data", "test.jsonl")[0] == 0
    assert run_script(here / "run", "--data", "a.jsonl", "--eval-data", "b.jsonl")[0] == 1


def test_the_script_says_that_it_reads_no_mixture(here):
    """It checks the rest."""
    made_up(here, mixture("a.jsonl", "b.jsonl", eval={"samples": "30%", "every": 6}))
    code, text = run_script(here / "run")
    assert code == 3
    assert "samples NOT CHECKED: they were made by rows with data.mixture" in text


def test_a_stored_job_keeps_its_evaluation(here):
    """A resume reads the job from the run's folder."""
    made = made_up(here, with_evaluation(samples="5%"))
    (file,) = Path(here, "run", "jobs").iterdir()
    assert made.run.job(file.stem) == made.job
    assert isinstance(made.job, Job)
