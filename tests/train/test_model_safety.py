"""A stranger's model folder: its code never runs, its pickles are never opened, and it names no file but its own."""

import builtins
import json
import os
import pickle
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.data.hf_tokenizer import HfTokenizer
from planner.data.model_checks import require_fit
from planner.data.model_folder import ModelFolder
from planner.data.safetensors_headers import tensors_in
from planner.errors import DataError, UserError
from planner.job import HfModel
from planner.train.models.hf import build_on_meta

CODE = """
from pathlib import Path
Path(MARKER).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig):
    model_type = "evil"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizerFast): ...
"""
AUTO_MAP = {
    "AutoConfig": "code.Config",
    "AutoModelForCausalLM": "code.Model",
    "AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"],
}


def model(folder, **changes):
    return HfModel.model_validate({"kind": "hf", "path": str(folder), "context": 8, **changes})


def opened(folder):
    return ModelFolder.find(model(folder))


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A small model with a tokenizer."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    place = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), place)
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "</s>": 2, "<unk>": 3}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(place)
    return place


@pytest.fixture
def yes(monkeypatch):
    """The questions that were asked. Each is answered with yes."""
    asked = []
    monkeypatch.setattr(builtins, "input", lambda *prompts: asked.append(prompts) or "y")
    return asked


def change(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def with_code(folder, marker, model_type):
    (folder / "code.py").write_text(CODE.replace("MARKER", repr(str(marker))))
    change(folder / "config.json", auto_map=AUTO_MAP, model_type=model_type)
    # A tokenizer's class that transformers does not know; with one that it knows, it would not look at the code.
    change(folder / "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class="Tokenizer")


def test_the_planted_code_is_dangerous(folder, tmp_path):
    """With trust_remote_code the code runs, so the tests below can fail."""
    from transformers import AutoConfig

    with_code(folder, tmp_path / "ran", "evil")
    AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("model_type", ["evil", "llama"])
def test_a_models_own_code_never_runs_and_nobody_is_asked(folder, tmp_path, yes, model_type):
    """A model kind that transformers does not know is refused. A known one is made by transformers itself."""
    with_code(folder, tmp_path / "ran", model_type)
    if model_type == "evil":
        with pytest.raises(UserError, match="transformers cannot make a model from it"):
            build_on_meta(opened(folder))
    else:
        build_on_meta(opened(folder))
    try:
        HfTokenizer.load(model(folder))
    except DataError as error:
        assert "cannot be loaded" in str(error)  # noqa: PT017  # of a kind that is known, it may be loaded
    else:
        assert model_type == "llama"
    assert not yes
    assert not (tmp_path / "ran").exists()


class Call:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("beside", [True, False], ids=["beside safetensors", "alone"])
def test_pickled_weights_are_never_opened(folder, tmp_path, beside):
    """Under all the names that transformers and torch have for them."""
    content = pickle.dumps(Call(tmp_path / "ran"))
    for name in ("pytorch_model.bin", "model.pt", "consolidated.00.pth", "training_args.bin", "adapter_model.bin"):
        (folder / name).write_bytes(content)
    if not beside:
        (folder / "model.safetensors").unlink()
        with pytest.raises(UserError, match="Its weights are pickles: save them as safetensors first"):
            build_on_meta(opened(folder))
    else:
        build_on_meta(opened(folder))
        HfTokenizer.load(model(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..", ""])
def test_an_index_names_files_of_its_own_folder(folder, name):
    """So the weights cannot come from another model's folder."""
    shutil.copy(folder / "model.safetensors", folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match=r"which is not a file in its folder|Is a directory"):
        _ = opened(folder).tensors


def test_a_link_out_of_the_folder_is_not_its_own(folder, tmp_path):
    """A link within the hub's cache is accepted, because the hub stores all files behind links."""
    (tmp_path / "key").write_text("secret")
    (folder / "within.json").symlink_to("config.json")
    opened(folder).inside("within.json")
    (folder / "tokenizer_key.json").symlink_to("../key")
    (folder / "twice.json").symlink_to("tokenizer_key.json")
    for name in ("tokenizer_key.json", "twice.json"):
        with pytest.raises(UserError, match=f"{name}: a link that leads out of the model's folder"):
            opened(folder).inside(name)
    hub = tmp_path / "hub" / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "1").mkdir(parents=True)
    (hub / "blobs" / "x").write_text("{}")
    (hub / "snapshots" / "1" / "tokenizer.json").symlink_to("../../blobs/x")
    opened(hub / "snapshots" / "1").inside("tokenizer.json")


numbers = st.one_of(st.integers(-9, 9), st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3))


@given(offsets=st.lists(numbers, max_size=3) | numbers, shape=st.lists(numbers, max_size=3) | numbers)
def test_a_header_names_bytes_behind_it_or_is_refused(tmp_path_factory, offsets, shape):
    """Never before the tensors, and never another error."""
    file = tmp_path_factory.getbasetemp() / "header.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    try:
        found = tensors_in(file)["a"]
    except UserError:
        return
    assert 8 + len(header) <= found.start <= found.end <= file.stat().st_size
    assert all(size >= 0 for size in found.shape)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model.safetensors"])
def test_json_without_an_end_is_refused(folder, name):
    """Python gives up at a depth of a thousand."""
    text = b'{"a":' * 100_000
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text if name == "model.safetensors" else text)
    with pytest.raises(UserError, match=name):
        require_fit(opened(folder))
