"""The work that a group has done, as its workers say, without a cluster."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.usefixtures("ray_environment")


class Actor:
    """Answers when the test says so, or dies."""

    def __init__(self):
        self.asked = []
        self.execute = SimpleNamespace(remote=lambda question: self.asked.append(question) or len(self.asked) - 1)


class TestHeartbeats:
    """The work that a group has done, as its workers say."""

    @pytest.fixture
    def ray_answers(self, monkeypatch):
        """(actor's number of the question) -> what it says; an error is raised."""
        from planner.dispatch.ray_internal import worker_progress

        answers = {}

        def get(reference):
            if isinstance(answers[reference], Exception):
                raise answers[reference]
            return answers[reference]

        monkeypatch.setattr(worker_progress.ray, "wait", lambda found, **_: ([r for r in found if r in answers], []))
        monkeypatch.setattr(worker_progress.ray, "get", get)
        return answers

    def test_answers_count_when_they_are_there_and_the_deaf_are_asked_once(self, ray_answers):
        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        now = [0.0]
        heartbeats, worker = WorkerProgress(lambda: now[0]), SimpleNamespace(actor=Actor())
        for now[0] in (0.0, 1.0, 10.0):
            assert heartbeats.total([worker]) == 0
        assert len(worker.actor.asked) == 1
        ray_answers[0] = 7
        assert heartbeats.total([worker]) == 7
        now[0] = 20.0
        assert heartbeats.total([worker]) == 7
        ray_answers[1] = 9
        assert heartbeats.total([worker]) == 9

    def test_a_worker_that_died_counts_for_nothing(self, ray_answers):
        from ray.exceptions import RayError

        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        heartbeats, worker = WorkerProgress(lambda: 0.0), SimpleNamespace(actor=Actor())
        heartbeats.total([worker])
        ray_answers[0] = RayError()
        assert heartbeats.total([worker]) == 0

    def test_an_answer_that_is_lost_is_no_work(self, ray_answers):
        """Over a network that flaps, a group that hangs would seem to be at work for ever."""
        from ray.exceptions import RayError

        from planner.dispatch.ray_internal.worker_progress import WorkerProgress

        now = [0.0]
        heartbeats, worker = WorkerProgress(lambda: now[0]), SimpleNamespace(actor=Actor())
        ray_answers.update({0: 7, 1: RayError(), 2: 7, 3: RayError()})
        totals = []
        for now[0] in range(0, 25, 5):
            totals.append(heartbeats.total([worker]))
        assert totals == [0, 7, 7, 7, 7]
