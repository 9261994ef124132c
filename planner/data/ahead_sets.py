"""Opens rows of prompts and completions and tokenizes all of them: once on a machine, then they are mapped."""

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

from planner.data.base import Progress
from planner.data.hf_tokenizer import HfTokenizer
from planner.data.mixture import repeats, times_used, used_rows
from planner.data.row import Row
from planner.data.row_files import code_digest, package_code_digests
from planner.data.row_tokenizer import RowTokenizer
from planner.data.rows import open_rows
from planner.data.sample_cache import cached
from planner.data.sample_sets import SampleSet, joined
from planner.data.source_stamps import row_stamps
from planner.data.tokenizer import ByteTokenizer, Tokenizer
from planner.job import GptModel, HfModel, RowsData

# The tokenizers library uses all cores for one batch.
_ROWS_PER_BATCH = 1000


def open_ahead(data: RowsData, model: GptModel | HfModel, progress: Progress, kind: type[RowTokenizer]) -> SampleSet:
    """Open, check and tokenize rows of prompts and completions for a model.

    Raises:
        DataError: a file or a row cannot be used. The message names it, with the line or the row's number.
    """
    # First, so that missing files are reported before a tokenizer is downloaded.
    stamps = row_stamps(data)
    tokenizer = tokenizer_of(model)
    code = (*package_code_digests(Path(file) for file, _, _ in stamps), code_digest(kind))
    facts = (data.model_dump_json(), model.context, tokenizer.digest, stamps, code)
    num_bytes = sum(size for _, size, _ in stamps)
    make = partial(_tokenized, data, model.context, tokenizer, progress, kind)
    return cached(facts, num_bytes, make, partial(progress, 0, num_bytes), classes=kind.sets)


def tokenizer_of(model: GptModel | HfModel) -> Tokenizer:
    """The tokenizer whose ids the model reads.

    Raises:
        DataError: it cannot be loaded.
    """
    return ByteTokenizer() if isinstance(model, GptModel) else HfTokenizer.load(model)


def _tokenized(
    data: RowsData, context: int, tokenizer: Tokenizer, progress: Progress, kind: type[RowTokenizer]
) -> SampleSet:
    """The samples of all sets. Each set is tokenized, checked and packed by itself."""
    opened = [open_rows(each, takes_pairs=kind.takes_pairs) for each in data.sets]
    if not data.mixture:
        return _tokenized_set(kind(data, data.sets[0].path, context, tokenizer), opened[0].read(), progress)
    found = [rows.count() for rows in opened]
    named, all_used = [], used_rows(data.sets, found)
    for each, rows, num_rows, used in zip(data.sets, opened, found, all_used, strict=True):
        times = None if used == num_rows else times_used(num_rows, used, data.seed)
        tokenized = _tokenized_set(kind(data, each.path, context, tokenizer), rows.read(times), progress)
        named.append((each.name, tokenized))
    return joined(named, repeats(data.sets, found, all_used))


def _tokenized_set(opening: RowTokenizer, rows: Iterator[Row], progress: Progress) -> SampleSet:
    while batch := list(islice(rows, _ROWS_PER_BATCH)):
        progress(*batch[0].read)
        opening.add(batch)
    return opening.finish()
