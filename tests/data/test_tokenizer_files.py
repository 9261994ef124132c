"""A tokenizer that is not there or cannot be loaded: planner says what is missing, where it looked and what to do."""

import json
import re

import pytest
from tiny_tokenizers import CHATML, byte_level

from planner.data.hf_tokenizer import HfTokenizer
from planner.data.model_folder import ModelFolder, not_found_text
from planner.errors import DataError, UserError
from planner.job import HfModel

CONFIG = {"model_type": "llama", "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
# Texts of transformers and of the hub's client, which speak of things that the user does not have.
FOREIGN = re.compile(r"serialization file|backend tokenizer|hf\.co/|trust_remote_code|repo_type|Repo id")
OF_CLASS = {"tokenizer_class": "NoSuchTokenizer"}
OF_CODE = {"tokenizer_class": "MyTok", "auto_map": {"AutoTokenizer": ["x.MyTok", None]}}

# name -> (files beside config.json, what the error says)
LACKS = {
    "nothing": ({}, "is missing: {folder} has none of tokenizer.json, tokenizer.model, vocab.json"),
    # transformers makes an empty tokenizer for it, without a word.
    "settings alone": ({"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"}}, "is missing: {folder}"),
    "torn": ({"tokenizer.json": "{"}, "cannot be loaded: {folder}/tokenizer.json is not JSON"),
    "empty": ({"tokenizer.json": ""}, "cannot be loaded: {folder}/tokenizer.json is not JSON"),
    "a list": ({"tokenizer.json": "[]"}, "cannot be loaded: {folder}/tokenizer.json is not a JSON object"),
    "torn settings": (
        {"tokenizer.json": "{}", "tokenizer_config.json": "{"},
        "cannot be loaded: {folder}/tokenizer_config.json is not JSON",
    ),
    "a class of nobody": (
        {"vocab.json": "{", "tokenizer_config.json": OF_CLASS},
        "cannot be loaded: the class NoSuchTokenizer in {folder}/tokenizer_config.json",
    ),
    "a class of its own code": (
        {"vocab.json": "{", "tokenizer_config.json": OF_CODE},
        "code of the model's own repository, which planner does not run. Save the tokenizer as tokenizer.json",
    ),
    "no tokenizer in it": ({"tokenizer.json": "{}"}, "Copy the tokenizer's files again (transformers: "),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def write(folder, files):
    folder.mkdir(exist_ok=True)
    for name, value in {"config.json": CONFIG, **files}.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def model(path):
    return HfModel(kind="hf", path=str(path), context=8)


def refusal(path):
    with pytest.raises(DataError) as caught:
        HfTokenizer.load(model(path))
    text = str(caught.value)
    assert "\n" not in text
    assert not FOREIGN.search(text.partition("(transformers: ")[0])
    return text


@pytest.mark.parametrize("name", LACKS)
def test_what_a_folder_lacks_is_said_in_planners_own_words(name, tmp_path):
    files, says = LACKS[name]
    folder = write(tmp_path / "model", files)
    text = refusal(folder)
    assert text.startswith(f"model.path: the tokenizer of {folder} ")
    assert says.format(folder=folder) in text


@pytest.mark.parametrize(
    ("file", "content", "packages"),
    [
        ("tokenizer.model", b"\n\x05abc", "sentencepiece and protobuf, which are"),
        ("spiece.model", b"\n\x05abc", "sentencepiece and protobuf, which are"),
        ("qwen.tiktoken", b"IQ== 0\n", "tiktoken, which is"),
        ("tokenizer.model", b"IQ== 0\n", "tiktoken, which is"),
    ],
)
def test_a_missing_package_is_named_with_its_command(file, content, packages, tmp_path, monkeypatch):
    monkeypatch.setattr("planner.data.tokenizer_files._is_installed", lambda _module: False)
    folder = write(tmp_path / "model", {})
    (folder / file).write_bytes(content)
    text = refusal(folder)
    assert f"{file} needs {packages} not installed. Write pip install {packages.split()[0].rstrip(',')}" in text


def test_a_folder_with_a_tokenizer_is_loaded(tmp_path):
    byte_level(tmp_path, CHATML)
    assert HfTokenizer.load(model(tmp_path)).vocabulary


@pytest.mark.parametrize("path", ["/nowhere/model", "a/b/c", "./model"])
def test_a_path_with_nothing_at_it_says_where_planner_looked(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = "" if path.startswith("/") else f" (relative to {tmp_path}, where planner runs)"
    assert refusal(path) == f"model.path: {path}{place}: no such folder. Write the folder that has config.json"


def test_a_name_that_is_not_in_the_cache_says_where_planner_looked(tmp_path, monkeypatch):
    """The driver and the tokenizer say the same."""
    monkeypatch.chdir(tmp_path)
    text = refusal("org/no-such-model")
    assert text.startswith(
        f"model.path: no folder org/no-such-model (relative to {tmp_path}, where planner runs), nor in "
    )
    assert text.endswith("HF_HUB_OFFLINE is set. Write a folder, or download the model with HF_HUB_OFFLINE=0")
    with pytest.raises(UserError) as caught:
        ModelFolder.find(model("org/no-such-model"))
    assert str(caught.value) == text


def test_other_errors_of_the_hub_are_one_bounded_line():
    text = not_found_text("org/x", OSError("no route\n" + "to host " * 100))
    assert "nor on the hub: OSError: no route. Check the network, or write a folder" in text
    assert len(not_found_text("org/x", OSError("x" * 5000))) < 700
