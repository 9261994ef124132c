"""The live board: every state of a run, in terminals of any size."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import evaluation, header, measurement, step

from planner.report.board import board
from planner.report.run_table import Event
from planner.report.text_columns import columns_of
from planner.report.watched_run import Seen, run_state
from planner.store.run_status import NodeStatus, RunStatus, WorkerStatus
from planner.story.run_story import RunStory, story_of

NOW_S = 1_000_000.0


def workers(*states, newcomers=0):
    """Two workers on each node."""
    group = [WorkerStatus(rank=rank, node=f"{rank // 2:08x}", state=state) for rank, state in enumerate(states)]
    return (*group, *(WorkerStatus(rank=None, node="", state="warming") for _ in range(newcomers)))


def status(state="Running", *, states=("training",) * 4, newcomers=0, room=2, notice=False, why="", next_="no resize"):
    nodes = [NodeStatus(node=f"{at:08x}", host=f"gpu-{at}", room=room) for at in range(2)]
    if notice:
        nodes[1] = NodeStatus(node="00000001", host="gpu-1", room=0, has_notice=True, leaves_s=NOW_S + 25)
    return RunStatus(
        launch="l",
        time_s=NOW_S,
        state=state,
        why=why,
        next=next_,
        least=2,
        most=8,
        nodes=tuple(nodes),
        workers=workers(*states, newcomers=newcomers),
    )


SEEN = Seen(
    url="/runs/demo",
    driver="alive",
    driver_text="pid 7 on here",
    status=status(),
    story=story_of([header(3, 4, 36), *map(step, range(36, 39)), step(39, loss=2.5), evaluation(40, 2.75)]),
    losses=[(step, 5 - step / 20) for step in range(40)],
    events=[Event(time_s=NOW_S - 90, text="older"), Event(time_s=NOW_S - 3, text="resize: 3 -> 4, it pays")],
    committed_step=36,
    committed_time_s=NOW_S - 12,
    resume="planner run job.json",
)


def texts(seen, width=100, height=40, **options):
    """The rows of the board as plain text."""
    lines = board(seen, width, height, NOW_S, **options)
    return ["".join(text for text, _ in line) for line in lines]


def shown(seen, *arguments, **options):
    return "\n".join(texts(seen, *arguments, **options))


STATES = {
    "starting": replace(SEEN, status=None),
    "no live state": replace(SEEN, status_age_s=40.0),
    "training": SEEN,
    "notice": replace(SEEN, status=status(states=("training", "training", "leaving", "leaving"), notice=True)),
    "warming": replace(SEEN, status=status("Warming", newcomers=2)),
    "stopping": replace(SEEN, status=status("Stopping", states=("parked", "stopping", "stopping", "stopping"))),
    "resizing": replace(SEEN, status=status("Idle", states=("parked",) * 4)),
    "waiting": replace(SEEN, status=status("Waiting", states=("parked",) * 4, room=0)),
    "ending": replace(SEEN, status=status("Ending")),
    "not started": Seen(url="/runs/demo", is_run=False),
    "broken": replace(SEEN, problem="run.json is gone"),
    "finished": replace(SEEN, driver="ended", committed_step=160),
    "stopped": replace(SEEN, driver="ended"),
    "driver dead": replace(SEEN, driver="dead"),
    "driver silent": replace(SEEN, driver="silent", silent_s=30.0),
    "elsewhere": replace(SEEN, driver="elsewhere"),
}


@pytest.mark.parametrize("word", STATES)
def test_every_state_has_its_word(word):
    """In the first line, beside the run's name."""
    first = texts(STATES[word])[0]
    assert first.startswith("/runs/demo")
    assert first.rstrip().endswith(f" {word}")


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (replace(SEEN, status=status("Idle", states=(), room=2)), "starting"),
        (replace(SEEN, status=status("Idle", states=(), room=0)), "waiting"),
        (replace(SEEN, status=status(states=("starting",) * 2)), "starting"),
        (replace(SEEN, status=status(states=("starting", "training"))), "training"),
        (replace(SEEN, driver="none"), "not started"),
        (replace(SEEN, driver="alive", committed_step=160), "training"),
        (replace(SEEN, driver="dead", committed_step=160), "finished"),
        (replace(SEEN, status=None, has_begun=True), "ending"),
        (replace(SEEN, status=None, has_begun=True, committed_step=160), "finished"),
        (replace(SEEN, status_age_s=40.0, status=status("Idle", states=())), "starting"),
        (replace(SEEN, driver="ended", committed_step=0, story=RunStory()), "stopped"),
    ],
)
def test_a_state_follows_from_what_is_seen(seen, word):
    assert run_state(seen).word == word


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (status("Stopping", states=("stopping",), why="all stop"), "all stop"),
        (status(states=("starting",), why="loading"), "loading"),
        (status("Waiting", states=("parked",), why="all stop"), ""),
        (status(why="loading"), ""),
    ],
)
def test_a_text_of_the_past_is_not_shown(found, text):
    """The controller does not clear it while workers write the ledger."""
    assert run_state(replace(SEEN, status=found)).text == text


def test_a_held_step_is_shown_while_it_is_written():
    """Beside the durable one. It is of the controller that lives."""
    writing = status().model_copy(update={"held_step": 40, "durable_step": 36})
    assert "step 36, 12 s ago   held: step 40" in shown(replace(SEEN, status=writing))
    assert "held: step" not in shown(replace(SEEN, status=writing, committed_step=40))
    assert "held: step" not in shown(replace(SEEN, status=writing, driver="dead"))


def test_workers_are_shown_by_node_with_their_states():
    """With notices, and with newcomers that have no place yet."""
    seen = replace(
        SEEN,
        status=status("Warming", states=("training", "parked", "leaving", "leaving"), newcomers=1, notice=True),
    )
    rows = [line.split(None, 2) for line in texts(seen) if line.startswith("0000000") or "newcomer" in line]
    assert rows[0] == ["00000000", "gpu-0", "ranks 0 training, 1 parked"]
    assert [part.strip() for part in rows[1][2].rsplit("  ", 1)] == ["ranks 2-3 leaving", "leaves in 25 s"]
    assert " ".join(rows[2]).endswith("1 newcomer warming")


def test_many_nodes_are_summed_up():
    """Those that do not fit, by state."""
    nodes = tuple(NodeStatus(node=f"{at:08x}", host="h", room=2) for at in range(500))
    many = status(states=("training",) * 1000).model_copy(update={"nodes": nodes})
    found = shown(replace(SEEN, status=many), 80, 24)
    assert "more nodes: 9" in found
    assert len(texts(replace(SEEN, status=many), 80, 24)) <= 24


def test_facts_are_those_of_the_run():
    """Step, loss, split, age of the last commit, the next decision, and events with the newest first."""
    found = shown(replace(SEEN, status=status(next_="3 -> 5 in 20 s")))
    for text in (
        "40 of 160",
        "25%",
        "64.0 samples/s",
        "2 min left",
        "2.5000   held out 2.7500",
        "4 (min 2, max 8)   split 4 x 16, 2 rounds",
        "step 36, 12 s ago",
        "3 -> 5 in 20 s",
    ):
        assert text in found
    assert found.index("resize: 3 -> 4") < found.index("older")


def test_a_store_that_is_away_is_named():
    """And the last look stays."""
    found = shown(replace(SEEN, store_error="s3://runs: timed out"))
    assert "does not answer: s3://runs: timed out" in found
    assert "40 of 160" in found


def test_a_dead_driver_is_no_source_of_live_state():
    """Its workers ended with it, so none is shown."""
    found = shown(STATES["driver dead"])
    assert "rank" not in found
    assert "To resume: planner run job.json" in found


def test_without_unicode_it_is_ascii():
    assert shown(SEEN, ascii_only=True).isascii()


def test_control_characters_do_not_reach_the_terminal():
    """From a node's id, a host's name, an event or a path."""
    bad = "\x1b[2J\n"
    nodes = (NodeStatus(node=bad, host=bad, room=1),)
    seen = replace(
        SEEN,
        url=bad,
        events=[Event(time_s=None, text=bad)],
        store_error=bad,
        status=status(why=bad, next_=bad).model_copy(update={"nodes": nodes}),
    )
    assert all(line.isprintable() for line in texts(seen))


@given(word=st.sampled_from(sorted(STATES)), width=st.integers(1, 250), height=st.integers(1, 80), footer=st.booleans())
def test_it_fits_any_terminal(word, width, height, footer):
    """No line is too long and there are not too many; the footer is always there."""
    lines = texts(STATES[word], width, height, footer="q ends" if footer else "")
    assert len(lines) <= height
    assert all(columns_of(line) <= width for line in lines)
    if footer:
        assert lines[-1] == "q ends"[:width]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 50)])
def test_a_usual_terminal_shows_everything(width, height):
    """Nodes, a curve, events and the next decision."""
    found = shown(SEEN, width, height, footer="q ends")
    for text in ("gpu-1", "step 0", "resize: 3 -> 4", "no resize", "q ends"):
        assert text in found


def test_measured_speed_is_shown():
    """Tokens per second, MFU and memory, in a line of their own that may have two rows."""
    measured = measurement(40, NOW_S, num_steps=10, seconds=10.0, input_tokens=40_960, flops=4.1e12)
    seen = replace(SEEN, story=replace(SEEN.story, measured=(measured,)))
    assert "speed      64.0 samples/s   4,096 tokens/s   MFU 41%   3.0 GiB" in texts(seen, 80)
    assert "GiB" in shown(seen, 60)


@pytest.mark.parametrize("loss", [1e38, 1.7e308])
def test_a_run_that_diverges_has_a_board(loss):
    """Losses as large as floats can be."""
    losses = [(step, (-1) ** step * loss) for step in range(100)]
    assert texts(replace(SEEN, losses=losses))
