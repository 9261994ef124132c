"""Damaged and hostile JSON: each is refused with one kind of error, which says what was found."""

import pytest

from planner.base.json_text import NoJson, json_object, json_value, read_json_object

DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "not JSON (Expecting value"),
        (b'{"a": 1', "not JSON (Expecting"),
        (b'{"a": "\xff"}', "not JSON ('utf-8' codec can't decode byte 0xff"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not JSON (Exceeds the limit"),
        (DEEP, "nested too deeply"),
        (b"[1]", "not a JSON object"),
        ("null", "not a JSON object"),
    ],
    ids=["empty", "cut", "no text", "digits", "deep", "list", "null"],
)
def test_the_error_says_what_was_found(content, found):
    with pytest.raises(NoJson) as raised:
        json_object(content)
    assert str(raised.value).startswith(found)


def test_of_two_equal_keys_the_last_one_counts():
    assert json_object(b'{"a": 1, "a": 2}') == {"a": 2}


def test_any_value_is_read():
    assert json_value("[1, null]") == [1, None]


def test_a_file_is_read_up_to_its_bound(tmp_path):
    file = tmp_path / "a.json"
    file.write_text('{"a": 1}')
    assert read_json_object(file, 8) == {"a": 1}
    with pytest.raises(OSError, match="more than 7 bytes"):
        read_json_object(file, 7)
