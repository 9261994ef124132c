"""What `planner export` refuses. tests/fsdp/test_hf_training.py tests what it writes."""

import shutil


def test_a_run_that_has_no_model_for_others_is_refused(cli, recorded, tmp_path):
    """Exit code 2, one line, and nothing is written."""
    answer = cli("export", recorded.run, "-o", tmp_path / "out")
    assert (answer.code, answer.out) == (2, "")
    assert "its model.kind is gpt" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_named(cli, recorded, tmp_path):
    """A step that is not a number, a step without a commit, and no run."""
    answer = cli("export", recorded.run, "-o", tmp_path / "out", "--step", "last")
    assert (answer.code, answer.err) == (2, "planner: --step last: not a step. Write the step of a commit, or newest\n")
    answer = cli("export", recorded.run, "-o", tmp_path / "out", "--step", "3")
    assert answer.code == 1
    assert "no commit at step 3. Its commits are at step 2, 4" in answer.err
    answer = cli("export", tmp_path, "-o", tmp_path / "out")
    assert answer.code == 1
    assert "no run here" in answer.err


def test_a_commit_without_files_is_not_called_missing(cli, recorded, tmp_path):
    """The manifest of a pruned commit stays, so the run still has the commit."""
    run = shutil.copytree(recorded.run, tmp_path / "run")
    shutil.rmtree(run / "checkpoints/000000000002-000001")
    answer = cli("export", run, "-o", tmp_path / "out", "--step", "2")
    assert (answer.code, answer.out) == (1, "")
    assert "run: the files of step 2 are not kept. Write --step 4\n" in answer.err
