"""A JSON array in pieces is the array that `json.loads` reads whole."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.data import json_array
from planner.data.json_array import array_values

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


class Dribble(io.BytesIO):
    """Gives three bytes at a time, whatever is asked for."""

    def read(self, *_size):
        return super().read(3)


@given(st.lists(VALUES, max_size=8), st.booleans(), st.sampled_from([None, 1]))
def test_values_are_those_of_the_whole(values, ascii_only, indent):
    """However the chunks fall: numbers, characters and words may be cut in two."""
    content = json.dumps(values, ensure_ascii=ascii_only, indent=indent).encode(errors="surrogatepass")
    assert list(array_values(Dribble(content))) == values


@pytest.mark.parametrize(
    "text", ["[1,]", "[,1]", "[1 2]", "[1", "[", "[1] 2", "[1]]", '["a', "[nul", '[{"a" 1}]', "[1,,2]", "x", "", '["é']
)
def test_what_is_no_array_is_refused(text):
    """As `json.loads` does."""
    with pytest.raises(ValueError, match=r"."):
        json.loads(text)
    with pytest.raises(ValueError, match=r"."):
        list(array_values(Dribble(text.encode())))


@pytest.mark.parametrize("text", ['{"a": [1]}', "1", '"[1]"'])
def test_another_value_is_no_array(text):
    with pytest.raises(ValueError, match="not an array"):
        list(array_values(Dribble(text.encode())))


def test_a_flaw_has_the_number_of_its_row(monkeypatch):
    """Also where much follows it."""
    monkeypatch.setattr(json_array, "MAX_LINE_BYTES", 1000)
    rows = json.dumps(list(range(10**5)))
    with pytest.raises(ValueError, match=r"^row 4000: Expecting ',' delimiter$"):
        list(array_values(io.BytesIO(rows.replace("3999,", "3999").encode())))


@pytest.mark.parametrize("text", ["[1]" + " " * 10**5 + "2", " " * 10**5 + "[1]"])
def test_blanks_have_an_end(text, monkeypatch):
    monkeypatch.setattr(json_array, "MAX_LINE_BYTES", 1000)
    with pytest.raises(ValueError, match=r"row 0: Expecting value|more than 1000 blanks after its end"):
        list(array_values(io.BytesIO(text.encode())))


def test_a_value_has_an_end(monkeypatch):
    """A stranger's need not."""
    monkeypatch.setattr(json_array, "MAX_LINE_BYTES", 1000)
    with pytest.raises(ValueError, match="Unterminated string"):
        list(array_values(io.BytesIO(b'["' + b"a" * 10**7)))
