"""The page of metrics and the Grafana board: every series is documented, and the board shows all of them."""

import json
import re

import pytest
from pages import ROOT

from planner.dispatch.run_metrics import METRICS

BOARD = json.loads((ROOT / "docs" / "grafana" / "planner.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guides" / "prometheus.md").read_text(encoding="utf-8")
NAMES = {f"ray_{each.name}" for each in METRICS}
# Metrics of Prometheus begin with letters; those of ours, in an expression, with Ray's prefix.
_NAME = re.compile(r"\bray_\w+")
PANELS = BOARD["panels"]


def expressions():
    """(where, expression) of all queries."""
    yield from ((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"])
    yield from ((each["name"], each["expr"]) for each in BOARD["annotations"]["list"] if "expr" in each)


def test_every_metric_is_in_the_table_with_its_kind_unit_and_meaning():
    """In the order of the code, and no other."""
    rows = re.findall(r"(?m)^\| `(planner_\w+)` \| (\w+) \| ([^|]*) \| ([^|]+) \|$", PAGE)
    assert rows == [(each.name, each.kind, each.unit, each.help) for each in METRICS]


def test_both_pages_name_only_metrics_that_exist():
    """With `ray_` as Prometheus has them, or without as planner does."""
    named = set(re.findall(r"\bplanner_\w+", PAGE + GUIDE))
    assert named <= {each.name for each in METRICS}


def test_the_values_of_a_label_are_all_documented():
    """The uses of time."""
    from planner.provenance.run_times import RunTimes

    documented = next(line for line in PAGE.splitlines() if line.startswith("| `use`"))
    uses = {name.removesuffix("_s") for name in vars(RunTimes())}
    assert set(re.findall(r"`(\w+)`", documented)) == {"use", "planner_time_seconds"} | uses


def test_the_board_shows_every_metric_and_no_other():
    """A new metric needs a place on the board."""
    assert {name for _, text in expressions() for name in _NAME.findall(text)} == NAMES


@pytest.mark.parametrize(("where", "text"), list(expressions()))
def test_each_query_follows_the_chosen_runs(where, text):
    """By the board's variable, with one line per run: drivers and nodes come and go. A counter is summed over them."""
    assert where
    assert text.count('run=~"$run"') == len(_NAME.findall(text))
    kind = next(each.kind for each in METRICS if f"ray_{each.name}" in _NAME.findall(text))
    assert re.search(r"\b(sum|max) by \(run", text)[1] == ("sum" if kind == "counter" else "max")
    assert ("rate(" in text or "increase(" in text) <= (kind == "counter")
    assert text.count("(") == text.count(")")


def test_each_panel_can_be_read():
    """A title, an explanation, a unit, and a source that the reader chooses."""
    assert len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["type"] in {"timeseries", "stat"}
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        assert all("{{run}}" in target["legendFormat"] for target in panel["targets"])


def test_panels_do_not_overlap():
    """Within Grafana's 24 columns."""
    cells = [
        (column, line)
        for panel in PANELS
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24


def test_the_board_can_be_imported_anywhere():
    """No id of a database, a stable uid, and variables for the source and the runs."""
    assert BOARD["id"] is None
    assert BOARD["uid"]
    assert BOARD["schemaVersion"] >= 39  # Grafana 11
    variables = {each["name"]: each for each in BOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "run"}
    assert variables["datasource"]["query"] == "prometheus"
    assert _NAME.findall(variables["run"]["query"]["query"])[0] in NAMES
    assert variables["run"]["multi"]
    assert variables["run"]["includeAll"]


def test_uses_of_time_that_overlap_are_not_stacked():
    """Redone time is a part of others: stacked with them, the sum would be more than the run's time."""
    panel = next(panel for panel in PANELS if panel["title"] == "Where the time went")
    assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    apart = [each for each in panel["fieldConfig"]["overrides"] if each["matcher"]["options"].endswith("redone")]
    properties = {each["id"]: each["value"] for each in apart[0]["properties"]}
    assert properties["custom.stacking"]["mode"] == "none"
