"""Texts of plans, audits and a running run."""

import dataclasses
import json
from dataclasses import replace

import pytest

from planner.base.text import counted
from planner.plan import BatchSizes, make_plan
from planner.provenance.audit import Audit, GenerationSteps
from planner.report.audits import audit_json, phase_table, verdict
from planner.report.plan_table import Column, plan_json, plan_table, split_text
from planner.report.run_view import news_text, step_line
from planner.report.text_columns import aligned, columns_of, hanging, wrapped
from planner.store.records import CommitRecord, EvalRecord, EventRecord, GenerationRecord, StepRecord, TrainingIdentity
from planner.story.run_story import RunStory, StoryFold, story_of

# -- columns


def test_columns_are_as_wide_as_their_widest_cell():
    """Aligned to the right, except for the named columns."""
    assert aligned([("n", "name"), ("10", "x"), ("7", "longer")], left={1}) == [
        " n  name  ",
        "10  x     ",
        " 7  longer",
    ]


def test_a_wide_character_takes_two_columns():
    """Chinese names keep the next column straight, an accent takes none, and a wrapped line fits the terminal."""
    assert aligned([("run", "state"), ("实验", "done"), ("cafe\u0301", "lost")], left={0, 1}) == [
        "run   state",
        "实验  done ",
        "cafe\u0301  lost ",
    ]
    assert aligned([("实验",), ("a",)]) == ["实验", "   a"]
    text = "数据 损坏 " * 20
    for lines in (wrapped(text, 50), hanging("实验  ", text, 50)):
        assert 40 < max(map(columns_of, lines)) <= 50
        assert "\0" not in "".join(lines)
    assert hanging("实验  ", text, 50)[1].startswith(f"{' ' * 6}损坏 数据")


@pytest.mark.parametrize(("number", "text"), [(0, "0 steps"), (1, "1 step"), (2, "2 steps")])
def test_one_of_a_thing_is_singular(number, text):
    """Zero is plural."""
    assert counted(number, "step") == text


def test_every_line_of_a_table_has_the_same_columns():
    """A row with a missing cell is refused, because it would shift the others."""
    with pytest.raises(ValueError, match="shorter"):
        aligned([("a", "b"), ("a",)])


# -- plans


def plans(*world_sizes, global_batch=64, max_micro=8):
    sizes = BatchSizes(global_batch=global_batch, max_micro=max_micro)
    return [make_plan(sizes, world_size) for world_size in world_sizes]


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (((4, 13), (1, 12)), "4 x 13 + 1 x 12"),
        (((8, 8),), "8 x 8"),
        (((64, 1), (36, 0)), "64 x 1 + 36 x 0"),
        ((), ""),
    ],
)
def test_a_split_reads_as_workers_times_samples(shares, text):
    """Larger shares first, as the plan gives them."""
    assert split_text(shares) == text


def test_the_plan_table_word_for_word():
    """A header, then a line per plan in the given order, with notes at its end."""
    assert plan_table(plans(5, 3, 9)) == [
        "GPUs  used  split            micro-batch  rounds  cost  efficiency  notes",
        "   5     5  4 x 13 + 1 x 12            7       2    13       98.5%",
        "   3     3  1 x 22 + 2 x 21            8       3    22       97.0%",
        "   9     9  1 x 8 + 8 x 7              8       1     8       88.9%  8 workers are just as fast",
    ]


@pytest.mark.parametrize("width", [10, 40, 70, 93, 94, 120, 10_000])
def test_notes_that_do_not_fit_follow_below(width):
    """At any width the words and their order stay the same, and no line of notes is too wide."""
    wide, narrow = plan_table(plans(9, 100)), plan_table(plans(9, 100), width)
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(wide).split())
    assert narrow[0] == wide[0]
    below = [line for line in narrow if line.startswith("      ")]
    assert all(len(line) <= max(width, 40) for line in below)
    assert len(wide) == 3


def test_a_note_stays_on_its_line_as_long_as_it_fits():
    """With one column less it moves below."""
    row = plan_table(plans(9))[1]
    assert plan_table(plans(9), len(row))[1:] == [row]
    below = plan_table(plans(9), len(row) - 1)[1:]
    assert below == [row.removesuffix("  8 workers are just as fast"), "      8 workers are just as fast"]


def test_what_several_rows_would_say_of_communication_is_told_once_below():
    """With their counts. A row that alone has it keeps it."""
    advice = "raise max_micro (bf16 and activation checkpointing save memory), or use fewer workers"
    table = plan_table(plans(1, 2, 3, 5, 64, max_micro=1))
    assert table[-1] == f"2-3, 5 GPUs: micro-batch 1 is communication-bound under FSDP: {advice}"
    assert [line for line in table if "communication-bound" in line] == [table[5], table[-1]]
    assert table[5].endswith("  micro-batch 1 is communication-bound under FSDP: use fewer workers")
    assert "bound" not in "".join(plan_table(plans(1, 2, 3, 5, max_micro=1), sample_tokens=65_536))
    assert "micro-batch 1 (512 tokens) is" in plan_table(plans(2, 3, max_micro=1), sample_tokens=512)[-1]


def test_a_larger_micro_batch_is_no_advice_where_none_fits():
    """Rows that do not run have no note on their speed."""
    few, many = "save memory (bf16, activation checkpointing) or use fewer workers", "raise max_micro"
    table = plan_table(plans(2, 3, 5, 64, max_micro=1), fits={2: "too_large", 3: "full", 64: "full"})
    notes = [line.partition("%")[2] for line in table[1:]]
    said = "micro-batch 1 is communication-bound under FSDP: "
    assert notes[0] == ""
    assert notes[1].strip() == f"{said}no larger one fits, so {few}"
    assert notes[2].strip().startswith(f"{said}{many}")
    assert notes[3].strip() == f"{said}use fewer workers"
    two, three, *_ = json.loads(plan_json(plans(2, 3, max_micro=1), fits={2: "too_large", 3: "full"}))
    assert two["warnings"] == []
    assert three["warnings"] == [f"{said}no larger one fits, so {few}"]


def test_further_columns_follow_the_plans_own():
    """Aligned to the right, before the notes, and with the nodes behind them."""
    extra = [Column(title="s", cells={9: "~1", 5: "12"}), Column(title="memory", cells={9: "a", 5: "b"})]
    assert plan_table(plans(5, 9), extra=extra) == [
        "GPUs  used  split            micro-batch  rounds  cost  efficiency   s  memory  notes",
        "   5     5  4 x 13 + 1 x 12            7       2    13       98.5%  12       b",
        "   9     9  1 x 8 + 8 x 7              8       1     8       88.9%  ~1       a  8 workers are just as fast",
    ]


def test_a_plan_as_json():
    """The values, not their text: efficiency is a fraction, shares are pairs."""
    (found,) = json.loads(plan_json(plans(5)))
    assert (found["shares"], found["efficiency"]) == ([[4, 13], [1, 12]], 64 / 65)
    assert found["digest"] == plans(5)[0].digest


# -- audits

PHASES = (
    GenerationSteps(
        generation=1,
        world_size=4,
        shares=((4, 16),),
        accumulation_steps=2,
        first_step=0,
        end_step=40,
        recomputed_before=0,
    ),
    GenerationSteps(
        generation=12,
        world_size=3,
        shares=((1, 22), (2, 21)),
        accumulation_steps=3,
        first_step=40,
        end_step=160,
        recomputed_before=8,
    ),
)
CLEAN = Audit(
    steps=160,
    samples=10240,
    lost=0,
    repeated=0,
    mismatched=0,
    recomputed=8,
    uncommitted=0,
    global_batches=(64,),
    phases=PHASES,
    total_steps=160,
    held_out=((0, 5.5), (160, 2.5)),
    weights="",
    findings=(),
)


def test_the_phases_word_for_word():
    """One line per generation; ranges are half open."""
    assert phase_table(CLEAN) == [
        "generation  workers  split            rounds  steps      recomputed before",
        "         1        4  4 x 16                2  [0, 40)                    0",
        "        12        3  1 x 22 + 2 x 21       3  [40, 160)                  8",
    ]


def test_a_phase_by_length_has_no_split():
    """Each of its steps has another one, and at least so many rounds."""
    phase = replace(PHASES[0], by_length=True)
    _, row = phase_table(replace(CLEAN, phases=(phase,)))
    assert row.split() == ["1", "4", "by", "length", "2+", "[0,", "40)", "0"]


def test_a_certificate_is_printed_whole():
    """64 digits, to compare with those of another person."""
    assert f"weights       SHA-256 {'ab' * 32}" in verdict(dataclasses.replace(CLEAN, weights="ab" * 32))
    assert not any("weights" in line for line in verdict(CLEAN))


def test_an_audit_without_phases_is_a_header():
    """A run whose segments are all broken still has a report."""
    assert phase_table(replace(CLEAN, phases=())) == ["generation  workers  split  rounds  steps  recomputed before"]


def test_a_clean_verdict_word_for_word():
    """Counts, then one sentence. Counts that are zero in a clean run are left out."""
    assert verdict(CLEAN) == [
        "steps         160 (finished)",
        "samples       10240",
        "lost          0",
        "repeated      0",
        "recomputed    8 steps, done again after a loss or a stop, and counted once",
        "global batch  64 (constant)",
        "held-out loss 5.5000 at step 0, 2.5000 at step 160",
        "audit: clean. Every committed step used exactly its samples; the chain is intact",
    ]


def test_a_verdict_that_is_not_clean():
    """Every finding is a line. The last line is the verdict."""
    lines = verdict(replace(CLEAN, lost=3, mismatched=2, findings=("step 7: [red]wrong", "step 9: wrong")))
    assert "lost          3" in lines
    assert "mismatched    2 steps, so lost and repeated are not known" in lines
    assert lines[-3:] == [
        "WRONG         step 7: [red]wrong",
        "WRONG         step 9: wrong",
        "audit: NOT CLEAN. Do not trust this run before you know why",
    ]
    assert not any(line.startswith("audit: clean") for line in lines)


def test_a_run_under_way_is_told_apart_from_a_finished_one():
    """It shows the planned steps, and the steps that a crash now would lose."""
    lines = verdict(replace(CLEAN, steps=40, uncommitted=7))
    assert lines[0] == "steps         40 (of 160 planned)"
    assert "uncommitted   7 steps after the newest commit" in lines
    assert "uncommitted   1 step after the newest commit" in verdict(replace(CLEAN, uncommitted=1))


@pytest.mark.parametrize(("batches", "text"), [((64,), "64 (constant)"), ((64, 32), "64, then 32"), ((), "unknown")])
def test_a_global_batch_that_changed_is_not_called_constant(batches, text):
    """All of them are listed in order."""
    assert f"global batch  {text}" in verdict(replace(CLEAN, global_batches=batches))


def test_an_audit_as_json():
    """Its fields and `clean`."""
    found = json.loads(audit_json(replace(CLEAN, findings=("wrong",))))
    assert (found["clean"], found["findings"], found["phases"][1]["shares"]) == (False, ["wrong"], [[1, 22], [2, 21]])
    assert json.loads(audit_json(CLEAN))["clean"] is True


# -- a run as it goes


def generation(number, *, world_size, step=0, parent="", changed=()):
    identity = TrainingIdentity(
        global_batch=64, seed=0, data="0" * 64, model="1" * 64, optimizer="adamw", recipe="c" * 64, equality="balanced"
    )
    return GenerationRecord(
        generation=number,
        run_id="run",
        parent=parent,
        parent_sha256="e" * 64 if parent else "",
        step=step,
        cursor=step * 64,
        world_size=world_size,
        max_micro=8,
        layout_version=1,
        plan_digest=plans(world_size)[0].digest,
        identity=identity,
        job_digest="2" * 64,
        total_steps=160,
        num_samples=1000,
        facts={},
        changed=changed,
        time_s=0.0,
    )


def step(number, *, loss=2.0, seconds=0.5):
    return StepRecord(
        step=number,
        cursor=(number + 1) * 64,
        samples=64,
        tokens=6400,
        checksum="0" * 16,
        loss=loss,
        grad_norm=1.0,
        lr=0.1,
        seconds=seconds,
    )


def commit(number):
    return CommitRecord(step=number, name=f"{number:012d}-000001", sha256="e" * 64, seconds=0.25)


def held_out(number, loss):
    return EvalRecord(step=number, samples=61, tokens=6000, loss=loss, seconds=1.0)


def event(message):
    return EventRecord(message=message, time_s=0.0)


def tell(records, fold=None):
    """How the run stands afterwards, the lines of what happened, and the fold, to go on."""
    fold = fold or StoryFold()
    lines = [news_text(news) for news in map(fold.add, records) if news and news.is_listed]
    return fold.story, lines, fold


def test_a_line_before_the_first_record():
    """Nothing is known yet."""
    assert step_line(RunStory()) == "step 0/0  0 workers ()  durable 0"


def test_the_first_generation_begins():
    """Its line has the split of its own plan. The story has the plan and the number of steps."""
    story, lines, _ = tell([generation(1, world_size=5)])
    assert lines == ["generation 1 begins: 5 workers, split 4 x 13 + 1 x 12, 2 rounds, global batch 64"]
    assert (story.generation, story.world_size, story.plan) == (1, 5, plans(5)[0])
    assert (story.step, story.total_steps, story.committed_step) == (0, 160, 0)


def test_a_run_from_its_first_step_to_its_second_generation():
    """Steps and commits give no lines. Evaluations and events do. Lost steps are computed again."""
    first = [generation(1, world_size=5), *(step(n, loss=4.0 - n) for n in range(3))]
    story, lines, fold = tell(first)
    assert (story.step, story.loss, story.committed_step) == (3, 2.0, 0)
    assert len(lines) == 1

    more = [commit(3), held_out(3, 3.25), step(3, loss=1.0), step(4, loss=0.5), event("a [red]node")]
    story, lines, _ = tell(more, fold)
    assert lines == ["step 3: held-out loss 3.2500", "a [red]node"]
    assert (story.step, story.loss, story.last_eval.loss, story.committed_step) == (5, 0.5, 3.25, 3)

    parent = commit(3).name
    again = generation(2, world_size=3, step=3, parent=parent, changed=("train.steps: 1 -> 2",))
    story, lines, _ = tell([again], fold)
    begins = (
        "generation 2 resumed from the commit of step 3: 3 workers, split 1 x 22 + 2 x 21, 3 rounds, global batch 64"
    )
    assert lines == [f"{begins}, 2 steps to do again; train.steps: 1 -> 2"]
    assert (story.generation, story.step, story.committed_step, story.samples_per_s) == (2, 3, 3, 0.0)
    assert story.last_eval.loss == 3.25


def test_metrics_stand_beside_the_loss():
    """For the last step and for held-out samples. Without metrics, only the loss is shown."""
    metrics = {"reward_margin": 0.418, "reward_accuracy": 0.9062, "chosen_reward": 0.5, "rejected_reward": 0.1}
    records = [generation(1, world_size=5), step(0, loss=0.61).model_copy(update={"metrics": metrics})]
    story, _, fold = tell(records)
    assert step_line(story).startswith("step 1/160  loss 0.6100  margin 0.42  accuracy 0.91  5 workers ")
    measured = held_out(1, 0.5).model_copy(update={"metrics": {"kl": 0.1, "desirable_reward": -0.25}})
    _, lines, _ = tell([measured], fold)
    assert lines == ["step 1: held-out loss 0.5000, kl 0.10, desirable -0.25"]
    story, _, _ = tell([step(1, loss=2.0)], fold)
    assert "loss 2.0000  5 workers" in step_line(story)


def test_a_planned_resize_has_nothing_to_do_again():
    """The next generation begins at the committed step."""
    done = [generation(1, world_size=2), step(0), step(1), commit(2)]
    _, lines, _ = tell([*done, generation(2, world_size=3, step=2, parent=commit(2).name)])
    assert "to do again" not in lines[-1]
    assert lines[-1].startswith("generation 2 resumed from the commit of step 2: 3 workers")


def test_speed_is_a_moving_average_that_starts_again_with_each_generation():
    """The first step counts fully, later ones a fifth: 64 samples in 0.5 s, then in 0.25 s."""
    story, _, fold = tell([generation(1, world_size=2), step(0, seconds=0.5)])
    assert story.samples_per_s == pytest.approx(128)
    story, _, _ = tell([step(1, seconds=0.25)], fold)
    assert story.samples_per_s == pytest.approx(0.8 * 128 + 0.2 * 256)
    story, _, _ = tell([generation(2, world_size=3, step=2, parent="x"), step(2, seconds=1.0)], fold)
    assert story.samples_per_s == pytest.approx(64)


def test_a_step_that_took_no_time_does_not_divide_by_it():
    """A clock may stand still between two looks."""
    story = story_of([generation(1, world_size=2), step(0, seconds=0.0)])
    assert story.samples_per_s > 0


def test_a_step_line_says_where_the_run_is():
    """Step, loss, workers, split and speed in one line."""
    story = story_of([generation(1, world_size=5), step(0, loss=1.23456)])
    assert step_line(story) == "step 1/160  loss 1.2346  5 workers (4 x 13 + 1 x 12)  128.0 samples/s  durable 0"


def test_a_step_line_shows_the_held_step_while_it_is_written():
    """Not one that is durable, and none beyond the steps done: a group before this one held it."""
    story = story_of([generation(1, world_size=1), step(0), step(1), commit(1)])
    assert step_line(story, held_step=2).endswith("durable 1, held 2")
    assert step_line(story, held_step=1).endswith("durable 1")
    assert step_line(story, held_step=3).endswith("durable 1")


def test_a_commits_event_has_both_times():
    """The pause of training, and the time until the step was durable. It is no line among the events."""
    record = commit(3).model_copy(update={"seconds": 0.1, "write_s": 5.4})
    news = StoryFold().add(record)
    assert news_text(news) == "step 3: the commit paused training for 0.1 s and was durable after 5.4 s"
    assert not news.is_listed


def test_a_step_line_without_a_loss_has_no_hole():
    """Before the first step of a resumed generation."""
    story = story_of([generation(2, world_size=1, step=9, parent="x")])
    assert step_line(story) == "step 9/160  1 worker (1 x 64)  durable 9"
