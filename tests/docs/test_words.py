"""What can be counted of how we write. `python tests/docs/count_words.py` prints the counts of each page."""

from count_words import MOST_LINES, MOST_SEMICOLONS, PRONOUNS, per_1000, pronouns, readme_lines, words_and_semicolons
from pages import PAGES


def test_sentences_end_with_full_stops():
    """Semicolons per 1,000 words, in README and docs together."""
    words, semicolons = (sum(column) for column in zip(*map(words_and_semicolons, PAGES), strict=True))
    assert per_1000(words, semicolons) <= MOST_SEMICOLONS


def test_people_are_they_and_workers_are_it():
    """In README, docs, code, comments and messages."""
    assert pronouns() == []


def test_the_front_page_is_short():
    """So that people read it to the end."""
    assert readme_lines() <= MOST_LINES


def test_only_prose_is_counted(tmp_path):
    """Code, comments and targets of links are left out."""
    page = tmp_path / "page.md"
    page.write_text("One; two `a; b` [three](x;y). <!-- c; d -->\n\n```\ne; f\n```\n\n    g; h\n\nfour - five.\n")
    assert words_and_semicolons(page) == (5, 1)


def test_whole_words_are_searched():
    """Not parts of words."""
    assert PRONOUNS.search("what " + "h" + "e died of")
    assert not PRONOUNS.search("this shim, the history, they, them, her")
