"""`bench/step_time.py`: limits of processes, and rates of a real run."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.rehearsal.local_workers import LocalWorkers

TINY = {"layers": 1, "width": 16, "context": 8, "global": 8, "max_micro": 2}


@pytest.fixture(autouse=True)
def _benches(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2] / "bench"), *sys.path])


def cpu_s(pid):
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


@pytest.mark.process
@pytest.mark.parametrize("how", ["any", "in turns"])
def test_a_limited_process_gets_its_share_and_all_of_it_again_afterwards(how):
    """A fifth of a core: no more than that, whatever else runs here."""
    from _half_cores import _in_turns, limited

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        try:
            with limited([spinning.pid], 0.2) if how == "any" else _in_turns([spinning.pid], 0.2):
                before_s, started_s = cpu_s(spinning.pid), time.monotonic()
                time.sleep(1.0)
                used_s, passed_s = cpu_s(spinning.pid) - before_s, time.monotonic() - started_s
            assert used_s < 0.35 * passed_s
            assert Path(f"/proc/{spinning.pid}/stat").read_text().rpartition(")")[2].split()[0] in "RS"
        finally:
            spinning.kill()


@pytest.mark.process
def test_a_real_run_is_fitted_and_predicts_other_sizes(tmp_path):
    """The numbers are of the ledger. How near they are is measured on a quiet machine."""
    from step_time import measure, rows_of

    with LocalWorkers(4) as workers:
        rates, times = measure(workers, TINY, tmp_path, 4)
    assert [(each.world_size, each.steps) for each in rates.measured] == [(1, 3), (2, 3)]
    assert set(times) == {1, 2, 3, 4}
    assert rates.sample_tokens.value == 8
    assert rates.model.traffic.gather_bytes > 0
    rows = list(rows_of("tiny", TINY, [(rates, times)], "none"))
    assert [(row["workers"], row["is_fitted"]) for row in rows] == [(1, True), (2, True), (3, False), (4, False)]
    assert all(row["predicted_s"] > 0 and row["measured_s"] > 0 for row in rows)
