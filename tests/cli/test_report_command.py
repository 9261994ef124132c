"""`planner report`: the page as a file, and what it says if there is none to write."""

import shutil
import sys

import pytest
from made_runs import eventful, header, step, write_run
from page_checks import check_page

from planner.cli.report_command import _labelled


def test_a_trained_run_has_a_page(cli, recorded, tmp_path):
    """With its audit, its environment and its job. The output is one line."""
    answer = cli("report", recorded.run, "-o", "page.html")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("wrote page.html (0.")
    assert answer.out.count("\n") == 1
    reader = check_page((tmp_path / "page.html").read_text())
    assert "Audit: clean." in reader.text
    assert "4 of 4 optimizer steps with a global batch of 6 samples: 24 samples." in reader.text
    assert '"name": "tiny"' in reader.text
    assert "torch " in reader.text


def test_the_same_run_has_the_same_page(cli, recorded, tmp_path):
    """To the byte."""
    for name in ("one.html", "two.html"):
        assert cli("report", recorded.run, "-o", name).code == 0
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_several_runs_are_on_one_page(cli, recorded, tmp_path):
    """One that cannot be audited has the reason. One without a step says so."""
    write_run(tmp_path / "made", eventful())
    write_run(tmp_path / "begun", [header(1, 4, 0)])
    answer = cli("report", recorded.run, "made", "begun", "-o", "page.html")
    assert answer.code == 0
    reader = check_page((tmp_path / "page.html").read_text())
    assert "3 runs compared" in reader.text
    assert "Not audited." in reader.text
    assert "nothing was committed yet" in reader.text
    assert "No optimizer step is on record yet." in reader.text


def test_a_run_is_read_by_its_url(cli, tmp_path):
    """By fsspec, as any run."""
    write_run(tmp_path / "made", eventful())
    assert cli("report", f"file://{tmp_path}/made", "--no-audit").code == 0
    assert "The report was made with --no-audit." in (tmp_path / "report.html").read_text()


def test_a_damaged_run_has_a_page(cli, recorded, tmp_path):
    """An altered record is a finding."""
    shutil.copytree(recorded.run, tmp_path / "run")
    file = min((tmp_path / "run" / "ledger").iterdir())
    file.write_text(file.read_text().replace('"kind":"step","loss":', '"kind":"step","loss":1', 1))
    assert cli("report", "run").code == 0
    text = check_page((tmp_path / "report.html").read_text()).text
    assert "Audit: NOT CLEAN." in text
    assert "the chain breaks" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none"], "no run here"),
        ([""], "RUN is empty"),
        (["made", "-o", ""], "-o is empty"),
        (["made", "-o", "no/such/page.html"], "there is no folder"),
        (["made"] * 9, "found 9 runs, and one page compares at most 8"),
        (["made", "-o", "there.html"], "the file exists. Write another path, or replace it with --force"),
    ],
)
def test_mistakes_are_said_before_long_work(cli, tmp_path, words, message):
    """In one line, without a page."""
    write_run(tmp_path / "made", eventful())
    (tmp_path / "there.html").write_text("mine")
    answer = cli("report", *words)
    assert answer.code in {1, 2}
    assert message in answer.err
    assert (tmp_path / "there.html").read_text() == "mine"
    assert not (tmp_path / "report.html").exists()


def test_force_replaces_a_page(cli, tmp_path):
    """An older report."""
    write_run(tmp_path / "made", eventful())
    (tmp_path / "report.html").write_text("old")
    assert cli("report", "made", "--force", "--no-audit").code == 0
    assert "<!doctype html>" in (tmp_path / "report.html").read_text()


def test_without_matplotlib_it_says_how_to_install(cli, tmp_path, monkeypatch):
    """By the extra."""
    write_run(tmp_path / "made", eventful())
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer = cli("report", "made")
    assert answer.code == 2
    assert "planner report needs matplotlib. Install it: pip install '.[report]'" in answer.err


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        (["/a/demo"], ["demo"]),
        (["/a/demo/", "/b/other"], ["demo", "other"]),
        (["/a/demo", "/b/demo", "/c/x"], ["a/demo", "b/demo", "x"]),
        (["s3://bucket/demo", "/demo"], ["bucket/demo", "/demo"]),
        (["/a/demo", "/a/demo"], ["/a/demo (1)", "/a/demo (2)"]),
    ],
)
def test_labels_are_the_shortest_that_differ(runs, labels):
    """The ends of paths."""
    assert [label for _, label in _labelled(runs)] == labels


def test_a_run_without_a_page_is_named(cli, recorded, tmp_path):
    """Among others, and without a page of the others: its ledger is damaged, or of a newer version."""
    write_run(tmp_path / "newer", [header(1, 4, 0, layout_version=99), step(0)])
    answer = cli("report", recorded.run, "newer", "--no-audit", "-o", "page.html")
    assert answer.code == 2
    assert f"{tmp_path / 'newer'}: the plan has layout version 99" in answer.err
    assert not (tmp_path / "page.html").exists()
