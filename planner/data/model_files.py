"""What lies in the folder of a Hugging Face model: read without torch and without transformers.

The driver looks here before it starts anything, and every worker before it builds a model.
"""

import importlib.util
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, open_regular, read_bounded
from planner.base.extras import how_to_install
from planner.base.permissions import is_within
from planner.errors import UserError
from planner.job import HfModel, Job

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

# What a model needs of a repository on the hub: no other framework's weights, no pickles, no code.
_WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt")
# Of every tensor, this many bytes from its middle enter the fingerprint.
_SAMPLED_BYTES = 256
# About ten times the largest known files: indexes of 15 MB, tokenizers of 35 MB, templates of 50 kB.
_MAX_CONFIG_BYTES, _MAX_JSON_BYTES = 2**22, 2**28
_MODEL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Building a layer takes milliseconds even without memory. The deepest model known has 160.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 4096
_MOST_POSITIONS = 2**40
# The largest header that the safetensors library itself takes (its `MAX_HEADER_SIZE`).
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a safetensors file."""

    file: Path
    dtype: str
    """as safetensors writes it: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """byte in the file, from its beginning"""
    end: int
    """half open"""


def require_extra(*, lora: bool) -> None:
    """Check that the libraries of the `hf` extra are installed.

    Raises:
        UserError: one is not.
    """
    names = ("transformers", *(("peft",) if lora else ()))
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise UserError(f"model.kind hf needs {' and '.join(missing)}: {how_to_install('hf')}")


def folder_here(path: str, revision: str | None = None) -> Path | None:
    """A local folder, or what the hub's cache has of a name; None for a name that would have to be downloaded.

    Raises:
        UserError: it is neither a folder nor a name.
    """
    local = expanded(path)
    if local.is_dir():
        return local
    if local.exists() or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        what = "not a folder" if local.exists() else "no such folder"
        raise UserError(f"model.path: {path}: {what}; name the folder that holds {CONFIG}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        found = Path(snapshot_download(path, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise UserError(f"model.path: {path}: no such folder, and not a name on the hub ({error})") from error
    return found if (found / CONFIG).exists() else None


def folder_of(path: str, revision: str | None = None) -> Path:
    """A local folder, or what the hub's cache has of a name; downloaded once if it is not there.

    What is in the cache is used as it is: all workers see the same files, and a run needs no network.

    Raises:
        UserError: there is no such folder, and no such name on the hub or no way to it.
    """
    if (found := folder_here(path, revision)) is not None:
        return found
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=list(_WANTED)))
    except Exception as error:  # the hub's client raises its own, httpx's and OSError
        raise UserError(
            f"model.path: no folder {path} here (relative to where planner is run), nor on the hub: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """The model's configuration, as it stands in the file.

    Raises:
        UserError: there is none.
    """
    require_inside_folder(folder, folder / CONFIG)
    found = _read_json(folder / CONFIG, f"{folder}: not the folder of a Hugging Face model", _MAX_CONFIG_BYTES)
    if not isinstance(kind := found.get("model_type"), str) or not _MODEL_TYPE.fullmatch(kind):
        raise UserError(f"{folder / CONFIG}: names no model_type, so it is not that of a Hugging Face model")
    return found


def check_here(job: Job) -> None:
    """Check the models of a job as far as they are on this machine; nothing is downloaded.

    Raises:
        UserError: one cannot be trained as the job says.
    """
    for model in _models_of(job):
        require_extra(lora=model.lora is not None)
        if (folder := folder_here(model.path, model.revision)) is not None:
            check_folder(folder, model)
    require_same_tokens(job)


def require_same_tokens(job: Job) -> None:
    """Check that a model and the one that it is held to mean the same by a token, as far as they are on this machine.

    Raises:
        UserError: their vocabularies differ.
    """
    folders = [folder for model in _models_of(job) if (folder := folder_here(model.path, model.revision)) is not None]
    if len(folders) < 2:
        return
    sizes = [read_config(folder).get("vocab_size") for folder in folders]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"objective.reference_model: {folders[1]} knows {sizes[1]} tokens and {folders[0]} {sizes[0]}; a policy is "
            "held to a model with the same tokenizer"
        )
    ours, theirs = map(_vocabulary, folders)
    if ours and theirs and ours != theirs:
        raise UserError(
            f"objective.reference_model: the tokenizer of {folders[1]} has other tokens than that of {folders[0]}; a "
            "policy is held to a model with the same tokenizer"
        )


def _vocabulary(folder: Path) -> Any:
    """What a fast tokenizer's file says of its tokens; none where there is no such file."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    require_inside_folder(folder, file)
    found = _read_json(file, f"{file}: cannot be read", _MAX_JSON_BYTES)
    added, model = found.get("added_tokens") or [], found.get("model") or {}
    if not isinstance(added, list) or not isinstance(model, dict) or not all(isinstance(each, dict) for each in added):
        raise UserError(f"{file}: not a tokenizer's file; copy it again")
    return model.get("vocab"), [(token.get("id"), token.get("content")) for token in added]


def check(model: HfModel) -> Path:
    """Find a model and check what can be told of it from its folder; the folder.

    Raises:
        UserError: it cannot be trained as the job says.
    """
    require_extra(lora=model.lora is not None)
    folder = folder_of(model.path, model.revision)
    check_folder(folder, model)
    return folder


def check_folder(folder: Path, model: HfModel) -> None:
    """Check what can be told of a model from its folder.

    Raises:
        UserError: it cannot be trained as the job says.
    """
    require_readable(folder)
    config = read_config(folder)
    _require_causal(folder, config)
    _require_layers(folder, config)
    _require_context(folder, config, model.context)
    if model.weights == "pretrained":
        stored_tensors(folder)


def require_readable(folder: Path) -> None:
    """Check the files of a model's folder before libraries open them: a library waits for pipes and follows links.

    Raises:
        UserError: one is no regular file, leads out of the folder, is too large, or the configuration is none.
    """
    try:
        found = sorted(file for file in folder.iterdir() if any(map(file.match, _WANTED)))
        for file in found:
            require_inside_folder(folder, file)
            with open_regular(file) as stream:
                size = stream.seek(0, 2)
            if size > _MAX_JSON_BYTES and file.suffix != ".safetensors":
                raise UserError(f"{file}: {size} bytes; the largest that planner reads has {_MAX_JSON_BYTES}")
    except IsADirectoryError as error:
        raise UserError(f"{error.filename}: a folder where a model has a file; remove it") from error
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    read_config(folder)


def _require_layers(folder: Path, config: dict[str, Any]) -> None:
    for key in _LAYERS:
        if isinstance(number := config.get(key), int | float) and not number <= _MOST_LAYERS:
            raise UserError(f"{folder / CONFIG}: {key} is above {_MOST_LAYERS}, and no model has as many layers")


def _require_causal(folder: Path, config: dict[str, Any]) -> None:
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise UserError(f"{folder / CONFIG}: architectures is not a list of names, so no architecture can be told")
    if names and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise UserError(f"{folder / CONFIG}: {', '.join(map(str, names))} is not a causal language model with a head")
    if "quantization_config" in config:
        raise UserError(f"{folder / CONFIG}: its weights are quantized, and cannot be trained; take the original ones")


def _require_context(folder: Path, config: dict[str, Any], context: int) -> None:
    """Check that every position of a sample is one that the model knows.

    Raises:
        UserError: the job's context is longer, or would make a token's frequencies depend on its neighbours.
    """
    places = [_positive(folder, config, key) for key in ("max_position_embeddings", "n_positions")]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        return
    factor = _positive(folder, rope, "factor") or 1
    originals = [_positive(folder, its, "original_max_position_embeddings") for its in (rope, config)]
    if not (known := [math.floor(place) for place in places if place]):
        return
    original = math.floor(next(filter(None, originals), 0))
    longest = max(known[0], math.floor(factor * (original or known[0])))
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("dynamic", "longrope"):
        # Their frequencies follow from the longest sample of a micro-batch, so from who is in it with whom.
        longest = original or known[0]
    if context > longest:
        raise UserError(
            f"model.context is {context}, and {folder / CONFIG} knows {longest} positions"
            f"{f' at which rope {kind!r} is the same for all samples' if kind in ('dynamic', 'longrope') else ''}; "
            f"write model.context: {longest} or less"
        )


def _positive(folder: Path, values: dict[str, Any], key: str) -> float | None:
    """The number at `key`; none if nothing stands there.

    Raises:
        UserError: it is no number above 0; JSON of Python's has NaN and 1e999, too.
    """
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST_POSITIONS:
        raise UserError(f"{folder / CONFIG}: {key} is {repr(value)[:40]}; mend it, it is a number above 0")
    return value


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the model's safetensors files, by the name it has there. Only headers are read.

    Raises:
        UserError: there are no such files, or one is torn or missing.
    """
    index = folder / INDEX
    if index.exists():
        require_inside_folder(folder, index)
        where = _read_json(index, str(index), _MAX_JSON_BYTES).get("weight_map")
        if not isinstance(where, dict):
            raise UserError(f"{index}: has no weight_map")
        names = sorted({str(name) for name in where.values()})
        if foreign := [name for name in names if Path(name).name != name or name == ".." or not name.isprintable()]:
            raise UserError(f"{index}: names {foreign[0]!r}, which is not a file of its own folder")
    elif (folder / _SINGLE).exists():
        names = [_SINGLE]
    else:
        others = "; its weights are pickles, save them as safetensors first" if [*folder.glob("*.bin")] else ""
        raise UserError(
            f"{folder}: no {_SINGLE} and no {INDEX}{others}" + ("" if others else " (weights: random needs none)")
        )
    found: dict[str, StoredTensor] = {}
    for name in names:
        require_inside_folder(folder, folder / name)
        found.update(_header(folder / name))
    return found


def require_inside_folder(folder: Path, file: Path) -> None:
    """Check that a file of a model's folder is no link to somewhere else: a stranger's folder could name your keys.

    The hub's cache is made of links, to where it keeps all versions' files.

    Raises:
        UserError: it is one.
    """
    kept = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if not any(is_within(str(file), str(place)) for place in (folder, kept)):
        raise UserError(f"{file}: a link that leads out of the model's folder; put a copy in its place")


def fingerprint(job: Job) -> str:
    """`folder_fingerprint` of the model that is trained, and after a space of the one that it is held to, if another.

    Empty if all is made of the job alone.

    Raises:
        UserError: the files cannot be read.
    """
    found = [
        folder_fingerprint(folder_of(model.path, model.revision), weights=model.weights == "pretrained")
        for model in _models_of(job)
    ]
    return " ".join(found)


def _models_of(job: Job) -> list[HfModel]:
    """The model that is trained, and the one that it is held to if that is another."""
    if not isinstance(job.model, HfModel):
        return []
    reference = job.reference.model
    if reference is None:
        return [job.model]
    other = job.model.model_copy(update={"path": reference, "revision": None, "weights": "pretrained", "lora": None})
    return [job.model, other]


def folder_fingerprint(folder: Path, *, weights: bool) -> str:
    """64 hex digits over the configuration and, of the weights, all names, types, shapes and a sample of each tensor.

    A sample: a whole read would cost as much as loading. Training changes every part of a tensor, so other weights of
    the same shapes are told apart; a single altered number would not be seen.

    Raises:
        UserError: the files cannot be read.
    """
    read_config(folder)
    digest = sha256(_content(folder / CONFIG, _MAX_CONFIG_BYTES))
    if not weights:
        return digest.hexdigest()
    tensors = stored_tensors(folder)
    for name, tensor in sorted(tensors.items(), key=lambda item: (str(item[1].file), item[1].start)):
        middle = (tensor.start + tensor.end) // 2
        begin = max(tensor.start, middle - _SAMPLED_BYTES // 2)
        # A name from JSON may contain a lone surrogate, which UTF-8 cannot encode.
        digest.update(f"{name} {tensor.dtype} {tensor.shape} ".encode(errors="surrogatepass"))
        with open_regular(tensor.file) as stream:
            stream.seek(begin)
            digest.update(stream.read(min(_SAMPLED_BYTES, tensor.end - begin)))
    return digest.hexdigest()


def _header(file: Path) -> Mapping[str, StoredTensor]:
    """By the format's specification: 8 bytes of length, then JSON, then the tensors.

    Raises:
        UserError: the file is torn, or none of this format.
    """
    try:
        with open_regular(file) as stream:
            length = int.from_bytes(stream.read(8), "little")
            content = stream.read(length) if length <= _MAX_HEADER_BYTES else b""
            size = stream.seek(0, 2)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    try:
        found = {
            name: _stored(file, 8 + length, item)
            for name, item in json.loads(content).items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file}: not a safetensors file, or torn") from error
    end = max((tensor.end for tensor in found.values()), default=0)
    if end > size:
        raise UserError(f"{file}: torn ({size} bytes, and its tensors end at byte {end}); copy it again")
    return found


def _stored(file: Path, beginning: int, item: dict[str, Any]) -> StoredTensor:
    """One entry of a header; offsets count from the `beginning` of the tensors.

    Raises:
        ValueError: it names bytes before them, or amounts that are none; among others, for what is no entry.
    """
    (start, end), shape = item["data_offsets"], tuple(item["shape"])
    is_sound = isinstance(item["dtype"], str)
    if not is_sound or not all(type(number) is int and number >= 0 for number in (start, end - start, *shape)):
        raise ValueError("not an entry of a safetensors file")
    return StoredTensor(file=file, dtype=item["dtype"], shape=shape, start=beginning + start, end=beginning + end)


def _content(file: Path, most_bytes: int) -> bytes:
    try:
        return read_bounded(file, most_bytes)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error


def _read_json(file: Path, otherwise: str, most_bytes: int) -> dict[str, Any]:
    try:
        found = json.loads(read_bounded(file, most_bytes))
    except OSError as error:
        raise UserError(f"{otherwise}: {file.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UserError(f"{file}: not a JSON object")
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
