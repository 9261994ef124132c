"""Token files in jobs: which models read which, and what a dry run knows of their samples."""

import pytest
from pydantic import ValidationError

from planner.job import Job

GPT = {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 64}
HF = {"kind": "hf", "path": "m", "context": 64}


def job(model, **data):
    return Job.model_validate(
        {
            "name": "a",
            "model": model,
            "data": {"path": "corpus.tokens", **data},
            "batch": {"global": 8, "max_micro": 2},
            "train": {"steps": 1, "optimizer": {"kind": "adamw", "lr": 1e-4}},
        }
    )


def test_models_of_transformers_learn_from_token_files():
    """With the objective that is the default, and joined documents."""
    found = job(HF, kind="tokens")
    assert (found.objective.kind, found.data.documents) == ("lm", "join")


@pytest.mark.parametrize(("kind", "documents"), [("text", "join"), ("jsonl", "separate")])
def test_they_read_text_itself_too(kind, documents):
    """Rows of JSON lines are samples by themselves, as those of bytes are."""
    assert job(HF, kind=kind).data.documents == job(GPT, kind=kind).data.documents == documents


@pytest.mark.parametrize("kind", ["text", "jsonl", "tokens"])
@pytest.mark.parametrize("documents", ["join", "mask", "separate"])
def test_bytes_have_no_documents(kind, documents):
    """They are a stream or rows."""
    if documents == job(GPT, kind=kind).data.documents:
        assert job(GPT, kind=kind, documents=documents) == job(GPT, kind=kind)
        return
    with pytest.raises(ValidationError, match=rf"data.documents {documents} needs model.kind hf. Remove it"):
        job(GPT, kind=kind, documents=documents)


def test_windows_have_equal_lengths():
    """So a dry run knows them. Documents have any length, and only the file's header says what bytes are."""
    for kind in ("text", "jsonl", "tokens"):
        lengths = {documents: sample_tokens(job(HF, kind=kind, documents=documents)) for documents in DOCUMENTS}
        assert lengths == {"join": 64, "mask": 64, "separate": None}
    assert [sample_tokens(job(GPT, kind=kind)) for kind in ("text", "jsonl", "tokens")] == [64, None, None]


def sample_tokens(found):
    return found.data.sample_tokens(found.model)


DOCUMENTS = ("join", "mask", "separate")


def test_masked_windows_are_packed_rows():
    """The model is tried, as for packed conversations. The setting is named if it fails."""
    found = {documents: job(HF, kind="tokens", documents=documents).data.packing_setting for documents in DOCUMENTS}
    assert found == {"join": "", "mask": "data.documents", "separate": ""}
    packed = {"kind": "chat", "path": "rows", "packing": True}
    chat = Job.model_validate({**job(HF, kind="tokens").model_dump(by_alias=True), "data": packed, "objective": "sft"})
    assert chat.data.packing_setting == "data.packing"
