"""Opens text as samples: text files, rows of JSON lines, or a token file that `planner prepare` made of them.

For models over bytes, text files are read as they are. All other text becomes a token file first: small ones in memory,
larger ones in the cache on this machine's disk, where later starts find them.
"""

import io
import os
import weakref
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from planner.base.disk import cache_folder, open_regular
from planner.base.permissions import make_folder
from planner.base.text import counted
from planner.data.base import Progress
from planner.data.document_sets import Documents, DocumentSet
from planner.data.foreign_files import text_notes
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.paths import Stamps, content_fingerprint, resolve, source_stamps
from planner.data.prepare_tokens import write, write_file
from planner.data.sample_cache import LEAST_BYTES, forget_old, locked, place_of
from planner.data.text_files import TextBytes, head_of
from planner.data.tokens import BYTES, TokenFile
from planner.errors import DataError, RunError
from planner.job import GptModel, HfModel, JsonlData, TextData, TokensData

_TOKENS = "tokens"
"""the folder of token files in the cache"""


def open_text(data: TextData, model: GptModel | HfModel, progress: Progress) -> DocumentSet:
    """Text files: one stream of bytes, or a document of tokens each.

    Raises:
        DataError: there is no file, it cannot be read, or there are fewer than two tokens.
    """
    root, files = resolve(data.path)
    if isinstance(model, HfModel):
        return _of_ids(_token_file(data, HfTokenizer.load(model), progress), data.documents, model)
    notes = text_notes([(file, head_of(file)) for file in files])
    source = TextBytes.of(data.path, files)
    if source.num_tokens - len(files) < 2:
        raise DataError.of("data.path", f"{data.path!r} holds no text. A sample needs at least two bytes")
    fingerprint = content_fingerprint(root, files, "text", model.context)
    return _of_bytes(source, "join", model, fingerprint, notes)


def open_jsonl(data: JsonlData, model: GptModel | HfModel, progress: Progress) -> DocumentSet:
    """Rows of JSON lines: a sample or a document each.

    Raises:
        DataError: a line is not a JSON object with a text under `data.field`. The message names file and line.
    """
    root, files = resolve(data.path)
    if isinstance(model, HfModel):
        return _of_ids(_token_file(data, HfTokenizer.load(model), progress), data.documents, model)
    fingerprint = content_fingerprint(root, files, "jsonl", data.field, model.context)
    return _of_bytes(_token_file(data, None, progress, fingerprint), "separate", model, fingerprint)


def open_tokens(data: TokensData, model: GptModel | HfModel, _progress: Progress) -> DocumentSet:
    """A token file.

    Raises:
        DataError: the file's tokens are not those of the model's tokenizer, or it is torn or altered.
    """
    file = TokenFile.open(data.path)
    is_bytes = file.header.tokenizer == BYTES
    if isinstance(model, GptModel):
        if not is_bytes:
            raise DataError.of(
                "data.path",
                f"{file.name} holds ids of a tokenizer ({file.header.vocabulary} of them), and model.kind gpt reads "
                "bytes. Write model.kind: hf, or prepare the text as bytes",
            )
        documents: Documents = "separate" if file.header.kind == "rows" else "join"
        return _of_bytes(file, documents, model, file.fingerprint(model.context))
    prepare_it = f"Prepare the text again: planner prepare --tokenizer {model.path} SOURCE OUTPUT"
    if is_bytes:
        raise DataError.of("data.path", f"{file.name} holds bytes, and {model.path} reads ids. {prepare_it}")
    tokenizer = HfTokenizer.load(model)
    if tokenizer.ids_digest != file.header.tokenizer:
        raise DataError.of(
            "data.path",
            f"{file.name} was prepared with another tokenizer than that of {model.path} (the file has "
            f"{file.header.vocabulary} ids, this tokenizer {tokenizer.num_ids}). {prepare_it}",
        )
    return _of_ids(file, data.documents, model, tokenizer.vocabulary)


def _of_bytes(
    source: TextBytes | TokenFile,
    documents: Documents,
    model: GptModel,
    fingerprint: str,
    notes: tuple[str, ...] = (),
) -> DocumentSet:
    return DocumentSet(
        source=source, context=model.context, documents=documents, known=256, fingerprint=fingerprint, notes=notes
    )


def _of_ids(file: TokenFile, documents: Documents, model: HfModel, vocabulary: int | None = None) -> DocumentSet:
    left_out = file.header.num_empty
    note = f"{counted(left_out, 'document')} without tokens left out when the text was tokenized"
    return DocumentSet(
        source=file,
        context=model.context,
        documents=documents,
        known=min(file.header.vocabulary, vocabulary or file.header.vocabulary),
        fingerprint=file.fingerprint(model.context, documents),
        notes=(note,) * bool(left_out),
    )


# -- text -> a token file


def _token_file(
    data: TextData | JsonlData, tokenizer: HfTokenizer | None, progress: Progress, content: str = ""
) -> TokenFile:
    """The tokens of text, from the cache or made now.

    Args:
        data: the text.
        tokenizer: it makes the tokens. None: bytes.
        progress: called with (bytes done, bytes in all).
        content: the fingerprint of the text, if it becomes that of the data set: tokens in the cache must be of it.

    Raises:
        DataError: the text cannot be read, or there is no room for its tokens.
    """
    stamps = source_stamps(data.path)
    num_bytes = sum(size for _, size, _ in stamps)
    if num_bytes < LEAST_BYTES:
        return _in_memory(data, tokenizer, progress)
    field = data.field if isinstance(data, JsonlData) else ""
    place = place_of((data.kind, field, stamps, tokenizer.digest if tokenizer else BYTES, content), _TOKENS)
    with locked(place, partial(progress, 0, num_bytes)):
        try:
            file = _kept_open(open_regular(place), data.path)
        except (DataError, OSError):
            file = _written(data, tokenizer, place, progress, stamps)
        with suppress(OSError):  # a cache that this user may only read
            os.utime(place)  # `forget_old` goes by this time
            forget_old(place.parent)
    return file


def _written(
    data: TextData | JsonlData, tokenizer: HfTokenizer | None, place: Path, progress: Progress, stamps: Stamps
) -> TokenFile:
    try:
        make_folder(place.parent, cache_folder())
        write_file(data, place, tokenizer, progress)
        if source_stamps(data.path) != stamps:
            place.unlink(missing_ok=True)
            raise DataError.of("data.path", f"{data.path} has changed while it was read. Start the run again")
        return _kept_open(open_regular(place), data.path)
    except (OSError, RunError) as error:
        raise DataError.of(
            "data.path",
            f"the tokens of {data.path} have no place in the cache ({error}). Set PLANNER_CACHE to a folder with room, "
            "or make a token file there: planner prepare",
        ) from error


def _in_memory(data: TextData | JsonlData, tokenizer: HfTokenizer | None, progress: Progress) -> TokenFile:
    stream = os.fdopen(os.memfd_create("planner-tokens"), "w+b")
    with io.BytesIO() as starts:
        write(data, stream, starts, tokenizer, progress)
    stream.flush()
    return _kept_open(stream, data.path)


def _kept_open(stream: BinaryIO, name: str) -> TokenFile:
    """The token file in a stream. Other processes of the same user open it while this one lives, even if it is removed.

    Raises:
        DataError: it is not a token file, torn or altered.
    """
    try:
        file = TokenFile.at(Path(f"/proc/{os.getpid()}/fd/{stream.fileno()}"), name)
    except DataError:
        stream.close()
        raise
    weakref.finalize(file, stream.close)
    return file
