"""A ledger segment: written records are read back, and every alteration is found."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlanError, StoreError
from planner.plan import BatchSizes
from planner.provenance.identity import recorded_sizes
from planner.store.ledger import LedgerWriter, read_segment, recorded_commits, segment_name, split_line
from planner.store.records import (
    NO_HEAD,
    CommitRecord,
    EvalRecord,
    EventRecord,
    GenerationRecord,
    StepRecord,
    TrainingIdentity,
    canonical,
    chained,
    parse_record,
)
from planner.store.storage import Storage

IDENTITY = TrainingIdentity(
    global_batch=4, seed=1, data="a" * 64, model="b" * 64, optimizer="adamw", recipe="c" * 64, equality="balanced"
)


def header(generation=1, **changes):
    fields = {
        "generation": generation,
        "run_id": "run",
        "parent": "",
        "parent_sha256": "",
        "step": 0,
        "cursor": 0,
        "world_size": 2,
        "max_micro": 2,
        "layout_version": 1,
        "plan_digest": "p",
        "identity": IDENTITY,
        "job_digest": "c" * 64,
        "total_steps": 10,
        "num_samples": 100,
        "facts": {"gpus": ["ü", 1.5, None]},
        "changed": ("a change",),
        "time_s": 1.0,
    }
    return GenerationRecord(**{**fields, **changes})


def step_record(step, loss=2.5):
    return StepRecord(
        step=step,
        cursor=4 * (step + 1),
        samples=4,
        tokens=40,
        checksum=f"{step:016x}",
        loss=loss,
        grad_norm=0.1,
        lr=1e-3,
        seconds=0.5,
    )


RECORDS = [
    step_record(0, loss=0.1 + 0.2),
    step_record(1),
    EvalRecord(step=2, samples=3, tokens=30, loss=1e-300, seconds=0.0),
    CommitRecord(step=2, name="000000000002-000001", sha256="e" * 64, seconds=1.0),
    EventRecord(message='a "quoted"\nline\0 with \u2028, ü and 🙂', time_s=2.0),
    step_record(2),
]


def test_records_from_before_there_were_metrics_are_read():
    """They have no metrics. The chain covers the text in the file."""
    fields = {name: value for name, value in step_record(0).model_dump().items() if name != "metrics"}
    assert parse_record(json.dumps(fields), "ledger") == step_record(0)


def test_the_early_name_of_an_equality_is_read_as_the_present_one():
    early = IDENTITY.model_dump() | {"equality": "batches"}
    assert IDENTITY.differences(TrainingIdentity.model_validate(early)) == []


def written(storage, previous=NO_HEAD, records=RECORDS):
    """Write a segment with these records, and return the writer."""
    writer = LedgerWriter(storage, header(), previous)
    for record in records:
        writer.write(record)
    writer.flush()
    return writer


def read(storage, previous=NO_HEAD):
    return list(read_segment(storage, 1, previous))


def test_what_is_written_is_read(storage):
    """Records of every kind are equal to the last bit, and so is the chain's value after each."""
    writer = written(storage, previous="9" * 64)
    links = read(storage, "9" * 64)
    assert [link.record for link in links] == [header(), *RECORDS]
    head = "9" * 64
    for link in links:
        head = chained(head, canonical(link.record))
        assert link.head == head
    assert writer.head == head
    assert storage.names("ledger") == ["000001.jsonl"]


def test_the_chain_depends_on_what_came_before(tmp_path):
    """The same records after another head end in another head."""
    first, second = Storage(str(tmp_path / "1")), Storage(str(tmp_path / "2"))
    assert written(first).head != written(second, previous="1" * 64).head


def test_a_wrong_previous_head_is_caught(storage):
    """The error names the first line."""
    written(storage, previous="1" * 64)
    with pytest.raises(StoreError, match=r"ledger/000001\.jsonl:1: the chain breaks here"):
        read(storage)


def test_a_missing_segment_is_named(storage):
    """It is not read as an empty one."""
    with pytest.raises(StoreError, match=r"ledger/000001\.jsonl"):
        read(storage)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A segment's bytes and its chained records."""
    storage = Storage(str(tmp_path_factory.mktemp("whole")))
    written(storage)
    return storage.read(segment_name(1)), read(storage)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder to write altered segments to."""
    return Storage(str(tmp_path_factory.mktemp("scratch")))


def require_caught(scratch, whole, content):
    """Altered content raises, or what is read lacks the end: its head is not the one that a manifest names.

    A cut at the end cannot be seen in a segment alone, since a crash leaves the same.
    """
    scratch.write(segment_name(1), content)
    _, links = whole
    found = []
    try:
        for link in read_segment(scratch, 1, NO_HEAD):
            found.append(link)  # noqa: PERF402  # what came before the error counts
    except StoreError as error:
        assert segment_name(1) in str(error)  # noqa: PT017  # not raising is fine, too
    assert found == links[: len(found)]
    assert len(found) < len(links)


@given(data=st.data(), byte=st.integers(0, 255))
def test_any_changed_byte_is_caught(whole, scratch, data, byte):
    """Anywhere in the segment. The records before it are still read."""
    content, _ = whole
    where = data.draw(st.integers(0, len(content) - 1))
    altered = bytearray(content)
    altered[where] = byte if byte != altered[where] else byte ^ 1
    require_caught(scratch, whole, bytes(altered))


def test_a_change_before_the_last_line_raises(whole, scratch):
    """Every byte of the first line, including its newline, because only the last line may be torn."""
    content, _ = whole
    for where in range(content.index(b"\n") + 1):
        altered = bytearray(content)
        altered[where] ^= 1
        scratch.write(segment_name(1), bytes(altered))
        with pytest.raises(StoreError, match="000001"):
            list(read_segment(scratch, 1, NO_HEAD))


@given(data=st.data(), extra=st.binary(min_size=1, max_size=4))
def test_any_inserted_bytes_are_caught(whole, scratch, data, extra):
    """Anywhere before the end."""
    content, _ = whole
    where = data.draw(st.integers(0, len(content) - 1))
    altered = content[:where] + extra + content[where:]
    if altered.startswith(content):
        return  # appended after all: a torn line, or a line that the chain refuses
    require_caught(scratch, whole, altered)


@given(data=st.data())
def test_any_cut_is_caught(whole, scratch, data):
    """A piece from the middle or from the end."""
    content, _ = whole
    start = data.draw(st.integers(0, len(content) - 1))
    stop = data.draw(st.integers(start + 1, len(content)))
    require_caught(scratch, whole, content[:start] + content[stop:])


@given(data=st.data())
def test_lines_swapped_removed_repeated_or_made_up_are_caught(whole, scratch, data):
    """The chain covers every whole line and its position."""
    content, links = whole
    lines = content.splitlines(keepends=True)
    here, there = data.draw(
        st.lists(st.integers(0, len(lines) - 1), min_size=2, max_size=2, unique=True), label="lines"
    )
    altered = list(lines)
    change = data.draw(st.sampled_from(["swap", "remove", "repeat", "make up"]))
    if change == "swap":
        altered[here], altered[there] = altered[there], altered[here]
    elif change == "remove":
        del altered[here]
    elif change == "repeat":
        altered.insert(here, altered[there])
    else:
        record = canonical(step_record(5, loss=0.0))
        head = chained(links[here].head, record)
        # It fits what stands before it, and so breaks what comes after.
        altered.insert(here + 1, f'{{"head":"{head}","record":{record}}}\n'.encode())
    scratch.write(segment_name(1), b"".join(altered))
    try:
        found = list(read_segment(scratch, 1, NO_HEAD))
    except StoreError:
        return
    # Only the end can be lost or lengthened unseen, and then the last head is another.
    at_the_end = {"remove": found == links[:-1], "make up": found[: len(links)] == links}
    assert at_the_end.get(change)
    assert found[-1].head != links[-1].head


@given(kept=st.integers(0))
def test_a_torn_last_line_is_tolerated(whole, scratch, kept):
    """A crash may cut a segment anywhere: every complete line before the cut is read."""
    content, links = whole
    cut = content[: kept % len(content)]
    scratch.write(segment_name(1), cut)
    assert list(read_segment(scratch, 1, NO_HEAD)) == links[: cut.count(b"\n")]


@given(garbage=st.binary(max_size=300))
def test_arbitrary_bytes_are_a_store_error_or_nothing(scratch, garbage):
    """They raise no other exception and give no record."""
    scratch.write(segment_name(1), garbage)
    with contextlib.suppress(StoreError):
        assert list(read_segment(scratch, 1, NO_HEAD)) == []


@pytest.mark.parametrize(
    "record",
    [
        pytest.param('{"kind":"nothing"}', id="unknown kind"),
        pytest.param('{"kind":"step","step":-1}', id="half a step"),
        pytest.param("[]", id="a list"),
        pytest.param("[" * 5000 + "]" * 5000, id="nested too deeply"),
        pytest.param('{"kind":"event","message":"x","time_s":NaN}', id="NaN"),
        pytest.param('{"kind":"event","message":"x","time_s":1.0,"more":1}', id="one key more"),
    ],
)
def test_a_chained_line_that_is_no_record_is_refused(scratch, record):
    """Even with the right head, because another version of planner may have written it."""
    scratch.write(segment_name(1), f'{{"head":"{chained(NO_HEAD, record)}","record":{record}}}\n'.encode())
    with pytest.raises(StoreError, match=r"000001\.jsonl:1: not a ledger"):
        list(read_segment(scratch, 1, NO_HEAD))


def test_a_line_is_json_for_everyone(whole):
    """Other tools can parse it. `split_line` returns exactly the text that was chained."""
    content, links = whole
    for line, link in zip(content.decode().splitlines(), links, strict=True):
        head, body = split_line(line, "here")
        assert json.loads(line) == {"head": head, "record": json.loads(body)}
        assert (head, body) == (link.head, canonical(link.record))


def test_a_segment_has_one_writer(storage):
    """A second writer is refused, and the records of the first one stay."""
    first = written(storage)
    with pytest.raises(StoreError, match=r"cannot begin ledger/000001\.jsonl: another generation has written it"):
        LedgerWriter(storage, header(), NO_HEAD)
    assert read(storage)[-1].head == first.head


def test_recorded_commits_are_named(storage):
    """From all readable lines. The chain is not checked."""
    assert recorded_commits(storage, 1) == {}
    written(storage, previous="9" * 64)
    storage.append(segment_name(1), b'{"head":"torn "kind":"commit"')
    assert recorded_commits(storage, 1) == {"000000000002-000001": "e" * 64}


# -- when records reach the store


def test_a_file_system_gets_every_record_at_once(tmp_path):
    """A watcher sees it at once, and a crash loses nothing."""
    storage = Storage(str(tmp_path))
    writer = LedgerWriter(storage, header(), NO_HEAD)
    assert len(read(storage)) == 1
    writer.write(step_record(0))
    assert len(read(storage)) == 2


def test_elsewhere_records_wait_some_seconds():
    """By the clock that is handed in, because an object store rewrites the object for each append."""
    storage, now = Storage("memory://waiting"), [100.0]
    writer = LedgerWriter(storage, header(), NO_HEAD, clock=lambda: now[0])
    writer.write(step_record(0))
    assert len(read(storage)) == 1
    now[0] += 60
    writer.write(step_record(1))
    assert len(read(storage)) == 3
    writer.write(step_record(2))
    assert len(read(storage)) == 3
    writer.flush()
    writer.sync()
    assert len(read(storage)) == 4
    writer.flush()
    assert [link.head for link in read(storage)][-1] == writer.head


def test_generations_have_segments_of_their_own(storage):
    """The second segment continues the chain of the first."""
    first = written(storage)
    second = LedgerWriter(storage, header(generation=2), first.head)
    second.flush()
    assert [link.record for link in read_segment(storage, 2, first.head)] == [header(generation=2)]
    assert read(storage)[-1].head == first.head


@pytest.mark.parametrize("name", ["step", "samples"])
def test_a_count_beyond_64_bits_is_no_record(name):
    """Readers keep counts in 64 bits, and planner writes no larger ones."""
    line = canonical(step_record(0)).replace(f'"{name}":{getattr(step_record(0), name)}', f'"{name}":{2**63}')
    with pytest.raises(StoreError, match="not a ledger record"):
        parse_record(line, "here")


def test_limits_of_tokens_are_written_if_they_are_set(storage):
    """Earlier versions read the ledgers of other jobs, and no digest of theirs changes."""
    plain, limited = header(), header(max_tokens=4096)
    assert not {"max_tokens", "attention_at"} & json.loads(canonical(plain)).keys()
    assert json.loads(canonical(limited)).keys() - json.loads(canonical(plain)).keys() == {"max_tokens"}
    both = header(max_tokens=4096, attention_at=96)
    LedgerWriter(storage, both, NO_HEAD).flush()
    assert read(storage)[0].record == both
    assert recorded_sizes(both) == BatchSizes(global_batch=4, max_micro=2, max_tokens=4096, attention_at=96)
    assert recorded_sizes(plain) == BatchSizes(global_batch=4, max_micro=2)


def test_sizes_that_no_job_can_have_name_their_generation():
    """An altered header. The audit says where it is."""
    with pytest.raises(PlanError, match=r"^generation 1: its header .* batch\.max_tokens is 0\. Write"):
        recorded_sizes(header(1, max_tokens=0))
