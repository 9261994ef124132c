"""What the clouds' answers mean, and that no answer is an accident."""

import json
import math
import time

from hypothesis import given
from hypothesis import strategies as st
from metadata_server import MACHINE, event, events, iso

from planner.notice.aws import read_action, read_rebalance
from planner.notice.azure import read_events
from planner.notice.fetch import Answer
from planner.notice.gcp import read_preempted
from planner.notice.notice import Notice, Trouble, unix_seconds

GOOGLE = {"metadata-flavor": "Google"}
NOW_S = 1_790_000_000.0


def ok(body, **headers):
    return Answer(status=200, headers=headers, body=body if isinstance(body, bytes) else json.dumps(body).encode())


READERS = {
    "action": read_action,
    "rebalance": read_rebalance,
    "preempted": lambda answer: read_preempted(answer, NOW_S),
    "events": lambda answer: read_events(answer, MACHINE, NOW_S),
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NEARLY = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["terminate", "stop", "sleep"]) | JSON,
        "time": st.sampled_from(["2026-09-18T08:22:00Z", "9999-99-99T00:00:00Z", "0001-01-01T00:00:00"]) | JSON,
        "noticeTime": JSON,
        "Events": st.lists(
            st.fixed_dictionaries(
                {"Resources": st.just([MACHINE]) | JSON},
                optional={
                    "EventType": st.sampled_from(["Preempt", "Terminate", "Reboot"]) | JSON,
                    "EventStatus": st.sampled_from(["Scheduled", "Started", "Completed"]) | JSON,
                    "NotBefore": st.sampled_from(["", "Mon, 19 Sep 2016 18:29:47 GMT"]) | JSON,
                },
            )
            | JSON,
            max_size=3,
        )
        | JSON,
    },
)


@given(
    status=st.sampled_from([200, 200, 200, 404]) | st.integers(100, 999),
    headers=st.sampled_from([{}, GOOGLE]),
    body=st.binary(max_size=60) | (NEARLY | JSON).map(lambda found: json.dumps(found).encode()),
)
def test_every_answer_is_nothing_a_notice_or_a_trouble(status, headers, body):
    """Whatever comes: no error, and a notice only from an answer that was given."""
    for name, read in READERS.items():
        seen = read(Answer(status=status, headers=headers, body=body))
        assert seen is None or isinstance(seen, Notice | Trouble), name
        if isinstance(seen, Notice):
            assert status == 200
            assert math.isfinite(seen.deadline_s) or name == "rebalance"


def test_what_is_nested_without_end_is_malformed():
    for read in READERS.values():
        assert isinstance(read(ok(b"[" * 200_000, **GOOGLE)), Trouble)


class TestAws:
    @given(st.sampled_from(["terminate", "stop", "hibernate"]), st.integers(0, 2**32))
    def test_the_moment_is_the_deadline(self, action, moment_s):
        text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment_s))
        seen = read_action(ok({"action": action, "time": text}))
        assert seen == Notice(what=f"spot interruption ({action})", deadline_s=moment_s)

    def test_404_is_no_notice(self):
        assert read_action(Answer(status=404)) is None
        assert read_rebalance(Answer(status=404)) is None

    def test_a_recommendation_names_no_moment(self):
        seen = read_rebalance(ok({"noticeTime": iso(0)}))
        assert isinstance(seen, Notice)
        assert seen.is_advice

    def test_an_unknown_action_is_not_guessed(self):
        for body in ({"action": "dance", "time": iso(0)}, {"action": "stop"}, {"time": iso(0)}, {}, []):
            assert isinstance(read_action(ok(body)), Trouble), body


class TestGcp:
    def test_a_preemption_of_google_leaves_thirty_seconds(self):
        assert read_preempted(ok(b"TRUE\n", **GOOGLE), NOW_S) == Notice(what="preemption", deadline_s=NOW_S + 30)
        assert read_preempted(ok(b"FALSE", **GOOGLE), NOW_S) is None

    def test_a_server_without_googles_header_is_not_believed(self):
        """A captive portal, or another cloud."""
        assert isinstance(read_preempted(ok(b"TRUE"), NOW_S), Trouble)


class TestAzure:
    def test_the_first_end_of_this_machine_counts(self):
        found = events(
            event("Terminate", NotBefore="Mon, 19 Sep 2016 18:39:47 GMT"),
            event("Preempt", NotBefore="Mon, 19 Sep 2016 18:29:47 GMT", machine=MACHINE.upper()),
            event("Preempt", NotBefore="Mon, 19 Sep 2016 18:09:47 GMT", machine="gpu-worker_70"),
            event("Reboot", NotBefore="Mon, 19 Sep 2016 18:09:47 GMT"),
            event("Preempt", NotBefore="Mon, 19 Sep 2016 18:09:47 GMT", status="Canceled"),
        )
        seen = read_events(ok(found), MACHINE, NOW_S)
        assert seen == Notice(what="scheduled event (Preempt)", deadline_s=1474309787.0)

    def test_both_ways_of_writing_a_moment(self):
        """The older versions of the interface have ISO 8601."""
        assert unix_seconds("2016-09-19T18:29:47Z") == unix_seconds("Mon, 19 Sep 2016 18:29:47 GMT") == 1474309787.0

    def test_an_event_that_has_started_is_due_now(self):
        seen = read_events(ok(events(event("Preempt", NotBefore="", status="Started"))), MACHINE, NOW_S)
        assert seen == Notice(what="scheduled event (Preempt)", deadline_s=NOW_S)

    def test_a_scheduled_event_without_its_moment_is_malformed(self):
        seen = read_events(ok(events(event("Preempt", NotBefore=""))), MACHINE, NOW_S)
        assert isinstance(seen, Trouble)

    def test_no_events_are_no_notice(self):
        assert read_events(ok(events()), MACHINE, NOW_S) is None
