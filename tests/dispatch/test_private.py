"""The contract with Ray's internals: what `dispatch.ray_internal` relies on is there, and does what is expected."""

import pytest
from events import EVENT_S, wait_for
from listeners import LOOPBACK

from planner.dispatch.ray_internal import kv_get, kv_put, quiet
from planner.events.failures import UserCodeRaised, WorkerDied, WorkerFailed

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


class TestKeyValueStore:
    def test_a_message_of_any_process_is_read_in_the_driver(self):
        import ray

        @ray.remote(num_cpus=0)
        def leave():
            kv_put("test-key", "a message — with ünicode")

        assert kv_get("test-key") == ""
        ray.get(leave.remote(), timeout=EVENT_S)
        assert kv_get("test-key") == "a message — with ünicode"


class TestLoopbackTorchConfig:
    def test_while_a_job_trains_nothing_listens_beyond_loopback(self, resized):
        """The driver, the cluster and three workers, seen in the midst of a run."""
        assert len(resized.workers[3]) == 3
        assert resized.addresses
        assert resized.addresses <= LOOPBACK

    def test_the_workers_find_the_variables_that_torch_programs_read(self, resized):
        """As with Ray's own configuration; nodes of one address are one machine to Ray."""
        wanted = {
            f"{rank}of{size}": f"gloo 127.0.0.1 {rank} {size} {rank} {size} 0 cpu"
            for size in (2, 3)
            for rank in range(size)
        }
        assert resized.variables == wanted


class TestQuiet:
    def test_the_clusters_notices_go_through_the_function_that_is_silenced(self, monkeypatch):
        """A notice published as the GCS does it for a dead node comes to whatever stands under that name."""
        from ray._private import worker
        from ray._private.utils import publish_error_to_driver

        heard = []
        monkeypatch.setattr(worker, "print_to_stdstream", lambda data, **_: heard.extend(data["lines"]))
        publish_error_to_driver("test", "a notice", worker.global_worker.gcs_client)
        wait_for(lambda: "a notice" in heard)

    def test_it_is_silent_and_leaves_all_as_it_was(self, monkeypatch, capsys):
        from ray._private import worker

        monkeypatch.setattr(worker, "print_to_stdstream", printer := lambda data, **_: print(data))
        with quiet():
            worker.print_to_stdstream({"lines": ["a notice"], "pid": "raylet", "is_err": False}, ignore_prefix=False)
        assert worker.print_to_stdstream is printer
        assert capsys.readouterr().out == ""


class TestBlame:
    @pytest.mark.parametrize(
        ("errors", "culprits"),
        [
            ({0: RuntimeError("[gloo] Connection closed by peer"), 1: ValueError("no space left")}, [1]),
            ({0: RuntimeError("Timed out waiting 60000ms"), 1: RuntimeError("NCCL error")}, []),
            ({0: ValueError("a bug"), 1: ValueError("a bug")}, []),
            ({1: ValueError("the others are not heard of yet")}, []),
        ],
    )
    def test_one_worker_that_says_something_of_its_own_is_to_blame(self, errors, culprits):
        """The others only echo that their collectives broke; and a mistake of all is no node's."""
        from planner.dispatch.ray_internal.diagnosis import culprit

        assert culprit(errors) == culprits

    @pytest.mark.parametrize(
        ("kinds", "is_lost"),
        [
            (["MemoryLost", "MemoryLost"], True),
            (["MemoryLost", "ValueError"], False),
            ([], False),
        ],
    )
    def test_copies_that_are_gone_are_told_from_a_failure(self, kinds, is_lost):
        """All workers raise that together."""
        from planner.dispatch.ray_internal.diagnosis import lost_memory

        errors = {rank: type(kind, (Exception,), {})("step 3") for rank, kind in enumerate(kinds)}
        assert lost_memory(errors) == is_lost

    def test_a_process_that_is_gone_is_told_by_its_rank_and_node(self):
        """Ray's own text is a list of what may have happened."""
        from planner.dispatch.ray_internal.diagnosis import cause

        nodes = {0: "aa" * 28, 1: "bb" * 28}
        died = cause([1], nodes, {1: RuntimeError("The actor is dead\nit may be (1) ...")})
        assert died == WorkerDied(rank=1, node=nodes[1])
        failed = WorkerFailed(rank=0, node=nodes[0], error="ValueError: y")
        assert cause([], nodes, {0: ValueError("x\ny")}) == failed
        assert cause([], nodes, {0: ValueError("x\nValueError: y")}) == failed
        assert cause([2], nodes, {2: RuntimeError("")}) == WorkerDied(rank=2, node=None)

    def test_the_mistake_in_code_is_told_and_not_the_broken_collective_of_the_others(self):
        """With type, file and line. Without a mistake, the first worker's error is told."""
        from planner.base.user_errors import CodeError, UserCodeFailed
        from planner.dispatch.ray_internal.diagnosis import cause, failed_code, mistake_of

        def failed(kind, message, origin):
            error = CodeError(kind=kind, message=message, place="loop.py:7, in train", traceback="")
            return UserCodeFailed(error, origin, 0)

        gone, typo = failed("RuntimeError", "Connection closed", "peers"), failed("NameError", "x", "code")
        nodes = {0: "aa" * 28, 1: "bb" * 28}
        assert failed_code({0: gone, 1: typo}) == (1, typo)
        raised = {"message": "x", "place": "loop.py:7, in train"}
        assert cause([], nodes, {0: gone, 1: typo}) == UserCodeRaised(rank=1, node=nodes[1], kind="NameError", **raised)
        assert mistake_of({0: gone, 1: typo}, nodes).node == mistake_of({1: typo}, nodes).node == "bb" * 28
        assert mistake_of({0: typo, 1: typo}, nodes).node == mistake_of({0: typo}, {0: "aa" * 28}).node == ""
        assert mistake_of({0: gone, 1: typo}, {0: "aa" * 28, 1: "aa" * 28}).node == ""  # another node cannot differ
        assert mistake_of({0: gone}, nodes) is failed_code({0: gone}) is None
        raised["message"] = "Connection closed"
        assert cause([], nodes, {0: gone}) == UserCodeRaised(rank=0, node=nodes[0], kind="RuntimeError", **raised)
