"""Rows written to a file and opened as samples. Samples read back as bytes."""

import json

from byte_models import gpt

from planner.data.open import open_dataset
from planner.job import ChatData, FeedbackData, PairsData

CLASSES = {"chat": ChatData, "pairs": PairsData, "feedback": FeedbackData}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def job_data(kind, path, **settings):
    return CLASSES[kind](kind=kind, path=str(path), **settings)


def opened(kind, rows, folder, *, model=None, as_array=False, **settings):
    """The data set of rows that are dictionaries, or the lines themselves."""
    path = folder / ("rows.json" if as_array else "rows.jsonl")
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text(f"[{','.join(lines)}]" if as_array else "".join(f"{line}\n" for line in lines))
    return open_dataset(job_data(kind, path, **settings), model or gpt(1000))


def as_bytes(ids):
    return bytes(ids.tolist())


def all_bytes(text):
    """Of a text of bytes in which each but the first is a label."""
    assert (text.inputs[1:] == text.labels[:-1]).all()
    return as_bytes(text.inputs) + as_bytes(text.labels[-1:])


def prompt_and_completion(text):
    """Of a text whose loss is on its completion."""
    borne = text.labels >= 0
    first = int(borne.argmax())
    assert borne[first:].all()
    return as_bytes(text.inputs[: first + 1]), as_bytes(text.labels[borne])


def parts(sample):
    """What a sample is, in bytes: `(prompt, completion, ...)`."""
    if hasattr(sample, "chosen"):
        prompt, chosen = prompt_and_completion(sample.chosen)
        again, rejected = prompt_and_completion(sample.rejected)
        assert prompt == again
        return prompt, chosen, rejected
    if hasattr(sample, "is_desirable"):
        assert prompt_and_completion(sample.text) == (as_bytes(sample.prompt), as_bytes(sample.completion))
        return *prompt_and_completion(sample.text), sample.is_desirable
    return prompt_and_completion(sample)


def all_parts(dataset):
    return [parts(dataset.sample(row)) for row in range(dataset.num_rows)]
