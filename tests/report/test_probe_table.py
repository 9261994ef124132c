"""What a probe found, as a table and as JSON."""

import json
import re

import pytest

from planner.probe.figures import Figure, Probed
from planner.report.probe_table import number, probe_json, probe_text


def figure(what, where, *values, unit="GB/s", how="files"):
    return Figure(what=what, where=where, unit=unit, values=values, num_bytes=256_000_000, how=how)


ONE = Probed(
    path="/data",
    nodes=("host-a",),
    figures=(
        figure("write", "host-a", 0.40, 0.4217, 0.45),
        figure("put if absent", "host-a", 1.2, 1.9, unit="ms", how=""),
    ),
    notes=("host-a: no GPU, so no copies were measured.",),
)
THREE = Probed(
    path="/data",
    nodes=("host-a", "host-b", "host-c"),
    figures=(figure("write", "host-a alone", 0.40), figure("write, all at once", "3 nodes", 0.42)),
    notes=(),
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1e-9, "0.000000001"),
        (0.001234, "0.00123"),
        (0.42, "0.42"),
        (0.09999, "0.1"),
        (1.3, "1.3"),
        (12.34, "12.3"),
        (100.0, "100"),
        (1234.5, "1234"),
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value, text):
    """`planner plan --storage-gbps` takes them as they are printed."""
    assert number(value) == text


def test_one_node():
    """Each number with its unit, its spread and what it is of."""
    lines = probe_text(ONE)
    assert lines[0] == "storage at /data, 1 node: host-a"
    assert lines[2].split() == ["what", "where", "median", "lowest", "to", "highest", "how"]
    assert re.split("  +", lines[3]) == ["write", "host-a", "0.422 GB/s", "0.4 to 0.45", "3 x 256.0 MB, files"]
    assert re.split("  +", lines[4]) == ["put if absent", "host-a", "1.55 ms", "1.2 to 1.9", "2 x 256.0 MB"]
    assert lines[6:] == [
        "host-a writes 0.422 GB/s (10^9 bytes per second).",
        "host-a: no GPU, so no copies were measured.",
        "",
        "For planner plan: --storage-gbps 0.422",
    ]


def test_several_nodes():
    """The sum of all is the value to pass on."""
    lines = probe_text(THREE)
    assert "All 3 nodes together write 0.42 GB/s (10^9 bytes per second)." in lines
    assert any(line.startswith("host-a alone writes 0.4 GB/s. One node alone writes about as much") for line in lines)
    assert lines[-1] == "For planner plan: --storage-gbps 0.42"


def test_a_narrow_terminal_does_without_the_last_column():
    """The numbers keep theirs."""
    lines = probe_text(ONE, 60)
    assert max(map(len, lines)) <= 60
    assert "how" not in lines[2]


def test_repeats_that_differ_are_told():
    """Of the write rate that is passed on."""
    unsteady = Probed(path="/data", nodes=("a",), figures=(figure("write", "a", 0.1, 0.3, 0.3),), notes=())
    assert any("3.0 times the lowest" in line for line in probe_text(unsteady))


def test_json():
    """The same numbers for scripts."""
    found = json.loads(probe_json(THREE))
    assert found["storage_gbps"] == 0.42
    assert found["nodes"] == ["host-a", "host-b", "host-c"]
    assert found["figures"][1] == {
        "what": "write, all at once",
        "where": "3 nodes",
        "unit": "GB/s",
        "median": 0.42,
        "lowest": 0.42,
        "highest": 0.42,
        "repeats": 1,
        "bytes": 256_000_000,
        "how": "files",
    }
