"""docs/reference/json.md names the keys that each command prints with --json, and their types."""

import dataclasses
import json
import re
import sys
from types import SimpleNamespace

import pytest
from pages import ROOT
from typed import planner_in

from planner.provenance.set_uses import SetUse

PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
TYPES = {
    "integer": int,
    "number": (int, float),
    "text": str,
    "true or false": bool,
    "list": list,
    "object": dict,
    "null": type(None),
}
# Keys that a plan has only in `planner plan`, and there only with a cluster.
AFTER_WARNINGS = {"compute", "state_bytes", "worker_state_bytes", "commit_s", "state_unknown", "surplus"}
ON_CLUSTER = {"nodes", "node_state_bytes"}
LENGTHS = {"lengths"}
RATES = {
    *("seconds_per_step", "seconds_from", "step_parts", "samples_per_s", "tokens_per_s", "run_s", "on_demand", "spot"),
}
MEMORY = {"memory", "memory_unknown"}
SHARED = "--set checkpoint.path=/shared/demo"


def table(heading):
    """Key -> type, of a section's table."""
    (section,) = re.findall(rf"(?ms)^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE)
    return dict(re.findall(r"(?m)^\| `([^`]+)` \| ([^|]+) \|", section))


def table_row(key):
    """What the page says behind a key of `planner plan`."""
    (found,) = re.findall(rf"(?m)^\| `{key}` \| [^|]+ \|(.*)\|$", PAGE)
    return found


def is_of(value, words):
    """Whether a value has the type that the page says, such as `integer or null`."""
    names = [words] if words in TYPES else words.split(" or ")
    return any(isinstance(value, TYPES[name]) and (name == "true or false" or value is not True) for name in names)


def described(value, known, prefix=""):
    """The keys of an object as the page writes them (`counts[].gpus`), each with its value."""
    for key, each in value.items():
        yield f"{prefix}{key}", each
        if isinstance(each, list) and any(path.startswith(f"{prefix}{key}[].") for path in known):
            for item in each:
                yield from described(item, known, f"{prefix}{key}[].")


def check(heading, value, *, also=(), without=()):
    """The object has the keys of the section, plus those of the sections `also`, minus `without`, with their types."""
    known = {key: words for name in (heading, *also) for key, words in table(name).items() if key not in without}
    found = list(described(value, known))
    assert {key for key, _ in found} == set(known)
    assert [(key, each) for key, each in found if not is_of(each, known[key])] == []


@pytest.fixture
def printed(reader):
    """The JSON that a command prints."""

    def call(text):
        answer = reader.type(f"{text} --json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    return call


def test_plan(printed):
    """Nodes are there with a cluster only, seconds with rates, and dollars with prices, too."""
    for plan in printed("planner plan jobs/demo.yaml"):
        check("planner plan", plan, without=ON_CLUSTER | LENGTHS | RATES | MEMORY)
    for plan in printed("planner plan jobs/demo.yaml --gpu 24g"):
        check("planner plan", plan, without=ON_CLUSTER | LENGTHS | RATES)
        assert set(re.findall(r"`(\w+)`", table_row("memory"))) >= set(plan["memory"]) | {plan["memory"]["moment"]}
    for plan in printed("planner plan jobs/demo.yaml --rates rates.yaml --prices prices.yaml"):
        check("planner plan", plan, without=ON_CLUSTER | LENGTHS | MEMORY)
        assert set(plan["spot"]) == set(re.findall(r"`(\w+)`", table_row("spot")))
        assert set(plan["step_parts"]) == set(re.findall(r"`(\w+_s)`", table_row("step_parts")))
    cluster = "--set workers.gpus=1 --set workers.max=32 --cluster cluster.yaml"
    for plan in printed(f"planner plan jobs/demo.yaml {cluster}"):
        check("planner plan", plan, without=LENGTHS | RATES)
    for plan in printed("planner plan jobs/demo.yaml --lengths"):
        check("planner plan", plan, without=ON_CLUSTER | RATES | MEMORY)
        assert set(plan["lengths"]["padded"]) == {"mean", "p95", "worst", "rounds"}


def test_check(printed):
    """The plans in it are those of `planner plan`."""
    found = printed("planner check RECIPE")
    check("planner check", found)
    check("planner plan", found["counts"][0]["planner"], without=ON_CLUSTER | LENGTHS | RATES | MEMORY | AFTER_WARNINGS)


def test_runs_and_show(printed):
    """`planner show` has the keys of `planner runs`, and more."""
    for run in printed("planner runs"):
        check("planner runs", run)
        assert set(run["last_event"]) == {"time_s", "text", "event", "facts"}
    check("planner show", printed("planner show runs/demo"), also=["planner runs"])


def test_simulate(printed):
    """Of several policies, and of one, whose keys then stand at the top."""
    simulate = "planner simulate jobs/demo.yaml --synthetic 'nodes=4 lifetime=1h length=3h'"
    found = printed(simulate)
    check("planner simulate", found)
    one = printed(f"{simulate} --policy stock")
    assert set(one) == {*found, *found["policies"][0]} - {"policies"}


def test_run(printed):
    """What a dry run prints."""
    found = printed("planner run jobs/demo.yaml --dry-run")
    check("planner run --dry-run", found)
    check("planner plan", found["plan"], without=ON_CLUSTER | LENGTHS | RATES | MEMORY | AFTER_WARNINGS)


def test_audit(printed):
    """Of a finished run, which has a single data set. tests/provenance/test_data_facts.py audits mixtures."""
    found = printed("planner audit runs/demo")
    assert found["sets"] == []
    found["sets"] = [dataclasses.asdict(SetUse(name="rows.jsonl", samples=3, whole_epochs=1, after=2))]
    check("planner audit", found)
    assert len(found["weights"]) == 64


def test_verify(printed, reader, monkeypatch):
    """A dry run, and the result of checks. tests/cli/test_verify_command.py trains for them."""
    from planner.provenance.compare import Check

    check("planner verify --dry-run", printed("planner verify jobs/demo.yaml --dry-run"))
    checks = [Check(what="losses", passed=True, detail="equal at 12 steps")]
    monkeypatch.setattr("planner.cli.verify_command.verify_job", lambda *_arguments, **_named: checks)
    check("planner verify", json.loads(planner_in(reader.checkout, ["verify", "jobs/demo.yaml", "--json"]).out))


def test_submit(printed, monkeypatch):
    """A dry run, and a submission to a stand-in for a cluster. The real module would import Ray."""
    ended = SimpleNamespace(status="SUCCEEDED", exit_code=0, reason="")
    server = SimpleNamespace(ray_version="2.60.0", submit=lambda _job: None, follow=lambda *_arguments: ended)
    stand_in = SimpleNamespace(JobsApi=SimpleNamespace(connect=lambda _address: server))
    monkeypatch.setitem(sys.modules, "planner.submit.jobs_api", stand_in)
    submit = f"planner submit jobs/demo.yaml --address http://127.0.0.1:8265 {SHARED}"
    check("planner submit --dry-run", printed(f"{submit} --dry-run"))
    check("planner submit", printed(submit), without={"status", "exit_code", "reason"})
    check("planner submit", printed(f"{submit} --follow"))


def test_probe(printed):
    """Of this machine."""
    check("planner probe", printed("planner probe corpus --size 1"))


def test_prepare(printed):
    """Of text."""
    check("planner prepare", printed("planner prepare corpus/ corpus.tokens"))


def test_export():
    """The command prints the fields of this class."""
    from planner.train.export.commit import Exported

    assert [field.name for field in dataclasses.fields(Exported)] == list(table("planner export"))


def test_every_command_with_json_has_a_section():
    """`planner run` prints the object of `planner show`, and the page says so."""
    commands = re.split(r"(?m)^## planner ", (ROOT / "docs" / "reference" / "cli.md").read_text())[1:]
    with_json = {text.split()[0] for text in commands if "| `--json` |" in text}
    assert with_json == {heading.split()[0] for heading in re.findall(r"(?m)^## planner (.*)$", PAGE)}
    assert "`planner run --json` prints the same object" in PAGE
