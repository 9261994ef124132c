"""Files of a submitted job have the paths that the user sent them by, wherever Ray unpacked them."""

import pytest

from planner.base.text import as_submitted

UNPACKED = "/tmp/ray/session_2026-11-25_22-35-44_1/runtime_resources/working_dir_files/_ray_pkg_0f1e2d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{UNPACKED}/jobs/own_loop.py", "jobs/own_loop.py"),
        (
            f"Check it: planner audit /shared/x --code {UNPACKED}/loop.py",
            "Check it: planner audit /shared/x --code loop.py",
        ),
        (f"data.path: no file at '{UNPACKED}/rows.jsonl'. Write", "data.path: no file at 'rows.jsonl'. Write"),
        (f"{UNPACKED}/a.jsonl, line 3, and {UNPACKED}/b/c.jsonl", "a.jsonl, line 3, and b/c.jsonl"),
        (f"(relative to {UNPACKED}, where planner runs)", "(relative to ., where planner runs)"),
        (UNPACKED, "."),
        ("/home/me/jobs/own_loop.py", "/home/me/jobs/own_loop.py"),
        (f"s3://bucket{UNPACKED}/x", f"s3://bucket{UNPACKED}/x"),
    ],
)
def test_only_paths_in_the_unpacked_folder_are_shown_as_they_were_sent(text, shown):
    """In a sentence or by themselves. What is elsewhere keeps its whole path."""
    assert as_submitted(text) == shown
