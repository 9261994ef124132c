"""Rows of prompts and completions in the commands: notes about rows, and the files that are sent along."""

import json

import pytest
from tiny_tokenizers import word_level

from planner.dispatch.launch import absolute
from planner.errors import UserError
from planner.job import Job
from planner.submit import shipment

ROWS = [{"prompt": "hi ", "completion": "yo" * n} for n in range(8)]


def chat_job(**changes):
    settings = {
        "name": "chat",
        "model": {"kind": "gpt", "layers": 1, "width": 8, "heads": 1, "context": 9},
        "data": {"kind": "chat", "path": "rows.jsonl", "bad_rows": "skip", "packing": True},
        "objective": {"kind": "sft"},
        "batch": {"global": 2, "max_micro": 2},
        "train": {"steps": 3, "optimizer": {"kind": "adamw", "lr": 1e-3}},
        "workers": {"gpus": 0},
    }
    return {**settings, **changes}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with rows, a model and a template. It is the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")
    (tmp_path / "mine.jinja").write_text("{{ messages }}")
    return tmp_path


def test_a_dry_run_says_what_became_of_the_rows(cli, here):
    """How many were left out, truncated and packed. A job that refuses bad rows names them."""
    (here / "job.yaml").write_text(json.dumps(chat_job()))
    notes = json.loads(cli("run", "job.yaml", "--dry-run", "--json").out)["notes"]
    where = f"{here}/rows.jsonl:1: completion is empty"
    assert notes[0] == f"data: 1 of 8 rows were left out (data.bad_rows: skip): 1 as {where}"
    assert notes[1].startswith("data: 5 of 7 samples were cut to model.context: 9 tokens. 30 of 91 tokens")
    assert notes[2].startswith("data: 7 conversations are packed into ")
    answer = cli("run", "job.yaml", "--dry-run", "--set", "data.bad_rows=refuse")
    assert answer.code == 2
    assert f"planner:   {where}\n" in answer.err


HF = {"kind": "hf", "path": "model", "context": 9, "chat_template": "mine.jinja"}


def test_a_local_model_and_its_template_go_with_a_job(here):
    """All files of the folder keep their names. The cluster looks up names on the hub."""
    (here / "job.yaml").write_text("")
    sent = shipment.collect("job.yaml", Job.model_validate(chat_job(model=HF)))
    assert sent.data == ("rows.jsonl", "model/config.json", "model/tokenizer.json", "mine.jinja")
    hub = Job.model_validate(chat_job(model={**HF, "path": "some/name", "chat_template": None}))
    assert shipment.collect("job.yaml", hub).data == ("rows.jsonl",)
    lost = Job.model_validate(chat_job(model={**HF, "chat_template": "gone.jinja"}))
    with pytest.raises(UserError, match=r"model.chat_template: no file at 'gone.jinja'"):
        shipment.collect("job.yaml", lost)


def test_a_data_set_folder_goes_with_a_job(here):
    """With all of its files."""
    from datasets import Dataset

    Dataset.from_list(ROWS[1:]).save_to_disk("folder")
    (here / "job.yaml").write_text("")
    data = {"kind": "chat", "path": "folder"}
    sent = shipment.collect("job.yaml", Job.model_validate(chat_job(data=data)))
    assert set(sent.data) == {f"folder/{file.name}" for file in (here / "folder").iterdir()}


def test_workers_elsewhere_find_the_model_and_its_template(here):
    """By their full paths. A name on the hub stays unchanged."""
    job = absolute(Job.model_validate(chat_job(model=HF)), "")
    assert (job.model.path, job.model.chat_template) == (f"{here}/model", f"{here}/mine.jinja")
    hub = absolute(Job.model_validate(chat_job(model={**HF, "path": "some/name"})), "")
    assert hub.model.path == "some/name"


def test_documents_in_a_dry_run_and_in_a_shipment(cli, here, tiny_model):
    """Samples, lengths and what was left out. Another tokenizer is refused, and the file goes with a submitted job."""
    folder = word_level(here / "words", 256)
    for file in tiny_model("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    rows = [" ".join(f"w{number}" for number in range(1, length)) for length in (9, 1, 12)]
    (here / "rows.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    made = cli("prepare", "rows.jsonl", "a.tokens", "--kind", "jsonl", "--tokenizer", "words")
    assert made.out.startswith("a.tokens: 2 documents (1 empty one left out), 21 tokens (uint16, 256 ids)"), made.err
    settings = {"model": {"kind": "hf", "path": "words", "context": 4}, "data": {"kind": "tokens", "path": "a.tokens"}}
    (here / "job.yaml").write_text(json.dumps(chat_job(**settings, objective="lm", train=EPOCH)))
    found = json.loads(cli("run", "job.yaml", "--dry-run", "--json").out)
    assert found["notes"][0] == "data: 1 document without tokens left out when the text was tokenized"
    assert found["total_steps"] == 3  # 20 labels in windows of 4, two to a step
    separate = json.loads(cli("run", "job.yaml", "--dry-run", "--json", "--set", "data.documents=separate").out)
    assert separate["total_steps"] == 1
    other = cli("prepare", "rows.jsonl", "b.tokens", "--kind", "jsonl", "--tokenizer", str(word_level(here / "b", 20)))
    refused = cli("run", "job.yaml", "--dry-run", "--set", "data.path=b.tokens")
    assert (other.code, refused.code) == (0, 2)
    assert "was prepared with another tokenizer than that of" in refused.err
    sent = shipment.collect("job.yaml", Job.model_validate(chat_job(**settings, objective="lm")))
    assert sent.data[0] == "a.tokens"


EPOCH = {"epochs": 1, "optimizer": {"kind": "adamw", "lr": 1e-3}}
