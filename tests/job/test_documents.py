"""Token files in jobs: which models read which, and what a dry run knows of their samples."""

import pytest
from pydantic import ValidationError

from planner.job import Job
from planner.job.data import packing_setting
from planner.job.job import sample_tokens

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


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_text_must_be_prepared_for_them(kind):
    """The error has the command."""
    says = rf"model.kind hf does not read data.kind {kind}. Make a token file, planner prepare --tokenizer m SOURCE"
    with pytest.raises(ValidationError, match=says):
        job(HF, kind=kind)


@pytest.mark.parametrize("documents", ["mask", "separate"])
def test_bytes_have_no_documents(documents):
    """A file of bytes is a stream or rows, as it was prepared."""
    with pytest.raises(ValidationError, match=rf"data.documents {documents} needs model.kind hf. Remove it"):
        job(GPT, kind="tokens", documents=documents)
    assert job(GPT, kind="tokens", documents="join").data.documents == "join"


def test_windows_have_equal_lengths():
    """So a dry run knows them. Documents have any length, and only the file's header says what bytes are."""
    lengths = {documents: sample_tokens(job(HF, kind="tokens", documents=documents)) for documents in DOCUMENTS}
    assert lengths == {"join": 64, "mask": 64, "separate": None}
    assert sample_tokens(job(GPT, kind="tokens")) is None


DOCUMENTS = ("join", "mask", "separate")


def test_masked_windows_are_packed_rows():
    """The model is tried, as for packed conversations. The setting is named if it fails."""
    found = {documents: packing_setting(job(HF, kind="tokens", documents=documents).data) for documents in DOCUMENTS}
    assert found == {"join": "", "mask": "data.documents", "separate": ""}
    packed = {"kind": "chat", "path": "rows", "packing": True}
    chat = Job.model_validate({**job(HF, kind="tokens").model_dump(by_alias=True), "data": packed, "objective": "sft"})
    assert packing_setting(chat.data) == "data.packing"
