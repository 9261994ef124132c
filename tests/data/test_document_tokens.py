"""`planner prepare --tokenizer`: documents keep the tokens of their whole text, and a file is whole or not there."""

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentence_piece, word_level
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from planner.data import document_tokens, prepare_tokens
from planner.data.document_tokens import Part, Piece, batches, pieces
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.prepare_tokens import prepare
from planner.data.tokens import BYTES, Header, TokenFile, dtype_of
from planner.errors import DataError
from planner.job import HfModel, JsonlData, TextData

FAMILIES = {"byte_level": byte_level, "sentence_piece": sentence_piece}
WORDS = "The quick brown fox jumps over the lazy dog. naïve café 日本語\n\n\tand  some   spaces\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model's folder for each family of tokenizers."""
    folder = tmp_path_factory.mktemp("models")
    return {name: hf(make(folder / name)) for name, make in FAMILIES.items()}


def hf(folder, context=8):
    return HfModel(kind="hf", path=str(folder), context=context)


def text(folder, *contents):
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(contents):
        (folder / f"{number:03d}.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return TextData(kind="text", path=str(folder))


def jsonl(folder, *texts):
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"body": row}) for row in texts))
    return JsonlData(kind="jsonl", path=str(folder), field="body")


def documents_of(path):
    file = TokenFile.open(str(path))
    return [file.read(int(start), int(end)).tolist() for start, end in pairwise(file.starts)]


def by_transformers(model, content):
    """The tokens of plain transformers, between what begins and ends a document."""
    tokenizer = AutoTokenizer.from_pretrained(model.path)
    ids = tokenizer(content, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    begin = [tokenizer.bos_token_id] if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id else []
    return [*begin, *ids, tokenizer.eos_token_id]


# -- the tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_are_those_of_transformers(models, tmp_path, family):
    """One per file or row, each tokenized by itself. A tokenizer that begins texts with a token begins documents so."""
    model, contents = models[family], ["hello there\n", WORDS, "fox"]
    expected = [by_transformers(model, content) for content in contents]
    prepare(text(tmp_path / "texts", *contents), tmp_path / "a", model=model)
    prepare(jsonl(tmp_path / "rows", *contents), tmp_path / "b", model=model)
    assert documents_of(tmp_path / "a") == documents_of(tmp_path / "b") == expected
    assert [each[0] == 1 for each in expected] == [family == "sentence_piece"] * 3


@pytest.mark.parametrize(("family", "special"), [("byte_level", "<|im_end|>"), ("sentence_piece", "</s>")])
def test_special_tokens_in_a_text_are_text(models, tmp_path, family, special):
    """A page about language models names the end of a document, and does not end there."""
    model = models[family]
    prepare(jsonl(tmp_path / "rows", f"fox{special}dog {special}"), tmp_path / "a", model=model)
    (document,) = documents_of(tmp_path / "a")
    end = AutoTokenizer.from_pretrained(model.path).eos_token_id
    assert document.count(end) == 1
    assert document[-1] == end
    assert AutoTokenizer.from_pretrained(model.path)(f"fox{special}")["input_ids"][-1] == end  # else it would


@pytest.mark.parametrize("family", FAMILIES)
def test_documents_without_tokens_are_left_out_and_counted(models, tmp_path, family):
    """An empty file has nothing to learn."""
    header = prepare(text(tmp_path / "texts", "", "fox", "", ""), tmp_path / "a", model=models[family])
    assert (header.num_rows, header.num_empty) == (1, 3)
    assert documents_of(tmp_path / "a") == [by_transformers(models[family], "fox")]


@pytest.mark.parametrize("family", FAMILIES)
@given(
    lines=st.lists(st.text("ab 日\t.<s>\n", max_size=12), max_size=30),
    sizes=st.tuples(st.integers(8, 40), st.integers(16, 30), st.integers(1, 60), st.integers(1, 100)),
)
def test_a_long_document_has_the_tokens_of_the_whole(models, family, lines, sizes):
    """Cut into pieces of any size, read in any chunks, tokenized in any batches."""
    piece, around, chunk, batch = sizes
    content = "\n".join(lines)
    tokenizer = loaded(models[family].path)
    parts = [content[i : i + chunk] for i in range(0, len(content), chunk)] or [""]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_tokens, "_PIECE_CHARS", piece)
        patch.setattr(document_tokens, "_AROUND_CHARS", around)
        patch.setattr(document_tokens, "_BATCH_CHARS", batch)
        given_parts = [part(each, is_last=i == len(parts) - 1) for i, each in enumerate(parts)]
        # Twice, so that the second document begins as the first one did.
        found = list(document_tokens.DocumentTokenizer(tokenizer).ids(given_parts * 2))
    ids = [token for each in found for token in each.ids.tolist()]
    expected = by_library(tokenizer, content)
    assert ids == expected * 2
    assert sum(each.begins for each in found) == (2 if expected else 0)


@cache
def loaded(path):
    return HfTokenizer.load(hf(path))


def by_library(tokenizer, content):
    (encoding,) = tokenizer.documents([content])
    return [*tokenizer.begin, *encoding.ids, tokenizer.end] if encoding.ids else []


def part(content, *, is_last):
    return Part(text=content, where="x", read=0, is_last=is_last)


@given(content=st.text("ab \n", max_size=300), chunk=st.integers(1, 50))
def test_pieces_are_the_text(content, chunk):
    """Their own characters joined, whatever the chunks, and around them what is there."""
    parts = [content[i : i + chunk] for i in range(0, len(content), chunk)] or [""]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_tokens, "_PIECE_CHARS", 20)
        patch.setattr(document_tokens, "_AROUND_CHARS", 7)
        found = list(pieces(part(each, is_last=i == len(parts) - 1) for i, each in enumerate(parts)))
        whole = list(pieces([part(content, is_last=True)]))
    own = [piece.text[piece.begin : piece.end] for piece in found]
    assert "".join(own) == content
    assert [piece.text for piece in whole] == [piece.text for piece in found]
    place = 0
    for piece, characters in zip(found, own, strict=True):
        assert piece.text == content[max(place - 7, 0) : place + len(characters) + 7]
        place += len(characters)
    assert all(0 < len(characters) <= 27 for characters in own) or not content
    assert [piece.is_last for piece in found] == [False] * (len(found) - 1) + [True]


def test_a_piece_ends_where_a_line_begins():
    """A line's first letter is never in one token with the line's end before. Without lines, a blank decides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_tokens, "_PIECE_CHARS", 12)
        patch.setattr(document_tokens, "_AROUND_CHARS", 4)

        def own(content):
            return [p.text[p.begin : p.end] for p in pieces([part(content, is_last=True)])]

        assert own("aaa\nbbb\n\n  cc\nddddddddd") == ["aaa\n", "bbb\n\n  cc\n", "ddddddddd"]
        assert own("aaa bbb cccc dddddd eee ff") == ["aaa bbb", " cccc", " dddddd eee ff"]
        assert own("a" * 30) == ["a" * 12, "a" * 12, "a" * 6]


def test_batches_begin_small_and_grow():
    """The first one is there after a 16th of the characters of a large one. No piece is left out."""
    many = [Piece(text="a" * 2**16, begin=0, end=2**16, where="x", read=at, is_last=True) for at in range(200)]
    left = iter(many)
    assert next(batches(left)) == many[:4]
    assert next(left) == many[4]
    found = list(batches(many))
    assert [len(batch) for batch in found] == [4, 8, 16, 32, 64, 64, 12]
    assert [piece for batch in found for piece in batch] == many


# -- the file


@pytest.mark.parametrize(("vocabulary", "dtype"), [(1, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_type_holds_the_largest_id(vocabulary, dtype):
    """65,536 ids end with 65,535, which 16 bits hold."""
    assert dtype_of(vocabulary) == dtype
    assert np.iinfo(dtype).max >= vocabulary - 1
    assert np.iinfo("uint16").max < vocabulary - 1 or dtype == "uint16"


@pytest.mark.parametrize(("size", "dtype"), [(65_536, "uint16"), (65_537, "uint32")])
def test_the_largest_ids_are_kept(tmp_path, size, dtype):
    """With the vocabulary that just fits, and with one more id."""
    model = hf(word_level(tmp_path / "model", size))
    header = prepare(jsonl(tmp_path / "rows", f"w1 w{size - 1}", "w2"), tmp_path / "a", model=model)
    assert (header.dtype, header.vocabulary, header.kind) == (dtype, size, "documents")
    assert documents_of(tmp_path / "a") == [[1, size - 1, 0], [2, 0]]
    # Five tokens of two or four bytes, padded to eight, and three places.
    assert header.num_bytes == 4096 + (16 if dtype == "uint16" else 24) + 24 == (tmp_path / "a").stat().st_size


def test_the_header_names_the_tokenizer(models, tmp_path):
    """One more id, and the same ids with other rules, are other tokenizers. A copy is the same one."""
    source = text(tmp_path / "texts", "hello there")
    words = [
        hf(word_level(tmp_path / "word", 10)),
        hf(word_level(tmp_path / "copy", 10)),
        hf(word_level(tmp_path / "other", 10, split=pre_tokenizers.BertPreTokenizer)),
        hf(word_level(tmp_path / "more", 11)),
    ]
    digests = [
        prepare(source, tmp_path / "out", model=model, replace=True).tokenizer for model in (*models.values(), *words)
    ]
    assert digests[2] == digests[3]
    assert len(set(digests)) == 5
    assert BYTES not in digests


@given(
    kind=st.sampled_from(["stream", "rows", "documents"]),
    dtype=st.sampled_from(["uint8", "uint16", "uint32"]),
    tokenizer=st.sampled_from([BYTES, "0" * 64]),
)
def test_documents_alone_have_a_tokenizer_and_wide_ids(kind, dtype, tokenizer):
    """Nothing else is a header that planner writes."""
    header = Header(
        kind=kind,
        dtype=dtype,
        num_tokens=2,
        num_rows=1,
        sha256="0" * 64,
        blocks_sha256="0" * 64,
        tokenizer=tokenizer,
    )
    is_documents = (kind == "documents", dtype != "uint8", tokenizer != BYTES)
    assert header.is_sound == (len(set(is_documents)) == 1)


# -- whole or not at all


@pytest.mark.parametrize("chunk", [4, 5, 6, 4096])
@pytest.mark.parametrize(("content", "at"), [(b"abcd\xffefg", 4), (b"abc\xe6\x97", 3), (b"abc\xe6\x97\xa5d\xc3", 7)])
def test_text_that_is_not_utf8_is_refused_and_leaves_nothing(models, tmp_path, monkeypatch, content, at, chunk):
    """With the file and the byte, also if a character ends in the next part."""
    monkeypatch.setattr(prepare_tokens, "_CHUNK_BYTES", chunk)
    source = text(tmp_path / "texts", "fine", content)
    with pytest.raises(DataError, match=rf"001\.txt is not UTF-8 at byte {at}, .* iconv"):
        prepare(source, tmp_path / "out", model=models["byte_level"])
    assert {entry.name for entry in tmp_path.iterdir()} == {"texts"}


def test_characters_across_parts_are_whole(models, tmp_path, monkeypatch):
    """Read in chunks of five bytes, the tokens are the same, and progress grows to the end."""
    model, told = models["sentence_piece"], []
    monkeypatch.setattr(prepare_tokens, "_CHUNK_BYTES", 5)
    source = text(tmp_path / "texts", WORDS * 3, "", WORDS)
    prepare(source, tmp_path / "out", model=model, progress=lambda done, of: told.append((done, of)))
    assert documents_of(tmp_path / "out") == [by_transformers(model, WORDS * 3), by_transformers(model, WORDS)]
    size = 4 * len(WORDS.encode())
    assert told == sorted(told)
    assert told[-1] == (size, size)


def test_a_bad_row_leaves_what_was_there(models, tmp_path):
    """As for bytes."""
    source = jsonl(tmp_path / "rows", "fox")
    prepare(source, tmp_path / "out", model=models["byte_level"])
    before = (tmp_path / "out").read_bytes()
    (tmp_path / "rows" / "zzz.jsonl").write_text('{"body": 7}\n')
    with pytest.raises(DataError, match=r"zzz\.jsonl:1: no text under 'body'"):
        prepare(source, tmp_path / "out", model=models["byte_level"], replace=True)
    assert (tmp_path / "out").read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"rows", "out"}


def test_ids_that_the_model_does_not_know_are_refused(tmp_path):
    """A tokenizer with more ids than the model's configuration. The row is named by its place."""
    model = hf(word_level(tmp_path / "model", 10))
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "vocab_size": 9}))
    with pytest.raises(DataError, match=r"rows\.jsonl, the row at byte 15: it has token 9, and the model knows 9"):
        prepare(jsonl(tmp_path / "rows", "w1", "w9"), tmp_path / "out", model=model)
    assert not (tmp_path / "out").exists()


def test_an_end_that_the_model_does_not_know_is_refused(tmp_path):
    """As after a new end-of-sequence token without new rows of the embedding."""
    folder = byte_level(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<|new|>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(DataError, match=f"it has token {tokenizer.eos_token_id}, and the model knows"):
        prepare(text(tmp_path / "texts", "fox"), tmp_path / "out", model=hf(folder))


@pytest.mark.parametrize("contents", [[], [""], ["", ""]])
def test_no_tokens_at_all_are_refused(models, tmp_path, contents):
    """A file must have a document."""
    for source in (jsonl(tmp_path / "rows", *contents), text(tmp_path / "texts", *contents or [""])):
        with pytest.raises(DataError, match=r"holds no (rows|text)"):
            prepare(source, tmp_path / "out", model=models["byte_level"])
    assert not (tmp_path / "out").exists()


def test_a_piece_knows_whether_it_is_a_document():
    """Only pieces with text around them need the places of tokens."""
    whole = Piece(text="abc", begin=0, end=3, where="x", read=0, is_last=True)
    assert whole.is_whole
    assert not any(
        Piece(text="abc", begin=begin, end=end, where="x", read=0, is_last=True).is_whole
        for begin, end in [(1, 3), (0, 2)]
    )
