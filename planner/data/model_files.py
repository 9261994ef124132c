"""Reads and checks the folder of a Hugging Face model, without torch and transformers.

The driver checks it before it starts anything, and every worker before it builds a model.
"""

import importlib.util
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, open_regular, place_text, read_bounded
from planner.base.json_text import NoJson, json_object, read_json_object, shown
from planner.base.permissions import is_within
from planner.base.text import how_to_install
from planner.errors import UserError, shortened
from planner.job import HfModel, Job

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

# What planner downloads of a repository on the hub: no weights of other frameworks, no pickles, no code.
_WANTED = ("*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt")
# The fingerprint includes this many bytes from the middle of each tensor.
_SAMPLED_BYTES = 256
# About ten times the largest known files: indexes of 15 MB, tokenizers of 35 MB, templates of 50 kB.
_MAX_CONFIG_BYTES, _MAX_JSON_BYTES = 2**22, 2**28
_MODEL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
# Building a layer takes milliseconds even without memory. The deepest model known has 160.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 4096
_MOST_POSITIONS = 2**40
# A token that is read and one to predict (`model.context` of a job).
_LEAST_CONTEXT = 2
_MOST_REASON = 200
# The largest header that the safetensors library reads (its `MAX_HEADER_SIZE`).
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor of a safetensors file."""

    file: Path
    dtype: str
    """safetensors' name of the type: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    start: int
    """offset of the first byte in the file"""
    end: int
    """offset after the last byte"""


def require_extra(*, lora: bool) -> None:
    """Check that the libraries of the `hf` extra are installed.

    Raises:
        UserError: a library is missing.
    """
    names = ("transformers", *(("peft",) if lora else ()))
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise UserError(f"model.kind hf needs {' and '.join(missing)}: {how_to_install('hf')}")


def folder_here(path: str, revision: str | None = None) -> Path | None:
    """The model's local folder, or its folder in the hub's cache. None for a name that must be downloaded.

    Raises:
        UserError: `path` is neither a folder nor a name on the hub.
    """
    local = expanded(path)
    try:
        is_folder, is_there = local.is_dir(), local.exists()
    except OSError as error:  # such as a name that is too long
        raise UserError(
            f"model.path: {path[:80]!r} cannot be opened: {error.strerror}. Write the folder that has {CONFIG}"
        ) from error
    if is_folder:
        return local
    if is_there or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        what = "not a folder" if is_there else "no such folder"
        raise UserError(f"model.path: {path}{place_text(path)}: {what}. Write the folder that has {CONFIG}")
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
    """The model's local folder, or its folder in the hub's cache. A name that is not in the cache is downloaded.

    A cached model is not updated: all workers see the same files, and a run needs no network.

    Raises:
        UserError: there is no such folder, and the hub has no such name or cannot be reached.
    """
    if (found := folder_here(path, revision)) is not None:
        return found
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, revision=revision, allow_patterns=list(_WANTED)))
    except Exception as error:  # errors of the hub's client, of httpx, and OSError
        raise UserError(not_found_text(path, error)) from error


def not_found_text(path: str, error: Exception) -> str:
    """The error for a model that is neither a folder, nor in the hub's cache, nor to be had from the hub.

    Args:
        path: `model.path` of the job.
        error: what the hub's client raised.
    """
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if isinstance(error, OfflineModeIsEnabled):
        reason = "HF_HUB_OFFLINE is set. Write a folder, or download the model with HF_HUB_OFFLINE=0"
    elif isinstance(error, GatedRepoError):
        reason = "the model is gated. Ask for access on its page, and log in with hf auth login"
    elif isinstance(error, RepositoryNotFoundError):
        reason = "it has no such model. Correct the name, or log in with hf auth login if the model is private"
    else:
        # Some of the client's errors stand for an error of the network.
        told = shortened(f"{type(error).__name__}: {_first_line(error)}", _MOST_REASON)
        reason = f"{told}. Check the network, or write a folder"
    return f"model.path: no folder {path}{place_text(path)}, nor in {HF_HUB_CACHE}, nor on the hub: {reason}"


def read_config(folder: Path) -> dict[str, Any]:
    """The model's configuration: the JSON of `config.json`.

    Raises:
        UserError: the folder has no configuration of a Hugging Face model.
    """
    require_inside_folder(folder, folder / CONFIG)
    found = _read_json(folder / CONFIG, f"{folder}: not the folder of a Hugging Face model", _MAX_CONFIG_BYTES)
    if "model_type" not in found:
        raise UserError(f"{folder / CONFIG}: it has no model_type, so it is not the file of a Hugging Face model")
    if not isinstance(kind := found["model_type"], str) or not _MODEL_TYPE.fullmatch(kind):
        raise UserError(
            f"{folder / CONFIG}: model_type is {shown(kind)}, which neither planner nor transformers knows. Copy the "
            "file again"
        )
    return found


def check_here(job: Job) -> None:
    """Check those models of a job that are on this machine. Nothing is downloaded.

    Raises:
        UserError: a model cannot be trained as the job says.
    """
    for model in _models_of(job):
        require_extra(lora=model.lora is not None)
        if (folder := folder_here(model.path, model.revision)) is not None:
            check_folder(folder, model)
    require_same_tokens(job)


def require_same_tokens(job: Job) -> None:
    """Check that the model and its reference model have one vocabulary, if both are on this machine.

    Raises:
        UserError: their vocabularies differ.
    """
    folders = [folder for model in _models_of(job) if (folder := folder_here(model.path, model.revision)) is not None]
    if len(folders) < 2:
        return
    sizes = [read_config(folder).get("vocab_size") for folder in folders]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"objective.reference_model: {folders[1]} knows {sizes[1]} tokens and {folders[0]} {sizes[0]}. "
            "Name a model with the tokenizer of the policy"
        )
    ours, theirs = map(_vocabulary, folders)
    if ours and theirs and ours != theirs:
        raise UserError(
            f"objective.reference_model: the tokenizer of {folders[1]} has other tokens than that of {folders[0]}. "
            "Name a model with the tokenizer of the policy"
        )


def _vocabulary(folder: Path) -> Any:
    """The tokens in a fast tokenizer's file, None if there is no such file."""
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    require_inside_folder(folder, file)
    found = _read_json(file, f"{file}: cannot be read", _MAX_JSON_BYTES)
    added, model = found.get("added_tokens") or [], found.get("model") or {}
    if not isinstance(added, list) or not isinstance(model, dict) or not all(isinstance(each, dict) for each in added):
        raise UserError(f"{file}: not the file of a tokenizer. Copy it again")
    return model.get("vocab"), [(token.get("id"), token.get("content")) for token in added]


def check(model: HfModel) -> Path:
    """Find or download a model, check its folder, and return the folder.

    Raises:
        UserError: the model cannot be trained as the job says.
    """
    require_extra(lora=model.lora is not None)
    folder = folder_of(model.path, model.revision)
    check_folder(folder, model)
    return folder


def check_folder(folder: Path, model: HfModel) -> None:
    """Check the files, configuration and weights in a model's folder.

    Raises:
        UserError: the model cannot be trained as the job says.
    """
    require_readable(folder)
    config = read_config(folder)
    _require_causal(folder, config)
    _require_layers(folder, config)
    _require_context(folder, config, model.context)
    if model.weights == "pretrained":
        stored_tensors(folder)


def require_readable(folder: Path) -> None:
    """Check the files of a model's folder before libraries open them, since libraries wait for pipes and follow links.

    Raises:
        UserError: a file is not regular, leads out of the folder or is too large, or the configuration is wrong.
    """
    try:
        found = sorted(file for file in folder.iterdir() if any(map(file.match, _WANTED)))
        for file in found:
            require_inside_folder(folder, file)
            with open_regular(file) as stream:
                size = stream.seek(0, 2)
            if size > _MAX_JSON_BYTES and file.suffix != ".safetensors":
                raise UserError(f"{file}: it has {size} bytes, and planner reads at most {_MAX_JSON_BYTES}")
    except IsADirectoryError as error:
        raise UserError(f"{error.filename}: a folder where a model has a file. Remove it") from error
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read: {error.strerror or error}") from error
    read_config(folder)


def _require_layers(folder: Path, config: dict[str, Any]) -> None:
    for key in _LAYERS:
        # `not <=`: NaN is no number of layers either.
        if isinstance(number := config.get(key), int | float) and not number <= _MOST_LAYERS:
            raise UserError(f"{folder / CONFIG}: {key} is above {_MOST_LAYERS}, and no model has so many layers")


def _require_causal(folder: Path, config: dict[str, Any]) -> None:
    names = config.get("architectures") or []
    if not isinstance(names, list):
        raise UserError(f"{folder / CONFIG}: architectures is not a list of names. Correct it")
    if names and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise UserError(f"{folder / CONFIG}: {', '.join(map(str, names))} is not a causal language model with a head")
    if "quantization_config" in config:
        raise UserError(f"{folder / CONFIG}: its weights are quantized and cannot be trained. Use the original ones")


def _require_context(folder: Path, config: dict[str, Any], context: int) -> None:
    """Check that the model knows every position of a sample.

    Raises:
        UserError: the job's context is longer, or would make a sample's frequencies depend on its micro-batch.
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
        # Their frequencies depend on the longest sample of a micro-batch, so on which samples share it.
        longest = original or known[0]
    if longest < _LEAST_CONTEXT:
        raise UserError(f"{folder / CONFIG}: it knows {longest} positions, too few for a sample. Copy the file again")
    if context > longest:
        raise UserError(
            f"model.context is {context}, and {folder / CONFIG} knows {longest} positions"
            f"{f' at which rope {kind!r} is the same for all samples' if kind in ('dynamic', 'longrope') else ''}. "
            f"Write model.context: {longest} or less"
        )


def _positive(folder: Path, values: dict[str, Any], key: str) -> float | None:
    """The number at `key`, None if there is none.

    Raises:
        UserError: the value is not a finite number above 0. Python's JSON also reads NaN and 1e999.
    """
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST_POSITIONS:
        raise UserError(f"{folder / CONFIG}: {key} is {repr(value)[:40]}. Write a number above 0")
    return value


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Name -> tensor, for all safetensors files of the model. Only headers are read.

    Raises:
        UserError: there are no such files, or one is torn or missing.
    """
    index = folder / INDEX
    if index.exists():
        require_inside_folder(folder, index)
        content = _read_json(index, str(index), _MAX_JSON_BYTES)
        if not isinstance(where := content.get("weight_map"), dict):
            found_there = shown(where) if "weight_map" in content else "missing"
            raise UserError(f"{index}: its weight_map is {found_there}, and must be an object. Copy it again")
        names = sorted({str(name) for name in where.values()})
        if foreign := [name for name in names if Path(name).name != name or name == ".." or not name.isprintable()]:
            raise UserError(f"{index}: it names {foreign[0]!r}, which is not a file in its folder")
    elif (folder / _SINGLE).exists():
        names = [_SINGLE]
    else:
        others = ". Its weights are pickles: save them as safetensors first" if [*folder.glob("*.bin")] else ""
        raise UserError(
            f"{folder}: no {_SINGLE} and no {INDEX}{others}" + ("" if others else " (weights: random needs none)")
        )
    found: dict[str, StoredTensor] = {}
    for name in names:
        require_inside_folder(folder, folder / name)
        found.update(_header(folder / name))
    return found


def require_inside_folder(folder: Path, file: Path) -> None:
    """Check that a file is not a link out of the model's folder, which could expose private files.

    Links within the hub's cache are allowed: its folders link to the files of all versions.

    Raises:
        UserError: the file leads out of the folder.
    """
    kept = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if not any(is_within(str(file), str(place)) for place in (folder, kept)):
        raise UserError(f"{file}: a link that leads out of the model's folder. Replace it by a copy")


def fingerprint(job: Job) -> str:
    """The `folder_fingerprint` of the model that is trained. If a reference model is named, a space and its own follow.

    Empty if the job does not use a Hugging Face model.

    Raises:
        UserError: the files cannot be read.
    """
    found = [
        folder_fingerprint(folder_of(model.path, model.revision), weights=model.weights == "pretrained")
        for model in _models_of(job)
    ]
    return " ".join(found)


def of_trained(fingerprint: str) -> str:
    """The part of a stored `fingerprint` that is the trained model's. Empty if there is none."""
    return fingerprint.partition(" ")[0]


def _models_of(job: Job) -> list[HfModel]:
    """The Hugging Face model that is trained, and the reference model if the job names one."""
    if not isinstance(job.model, HfModel):
        return []
    reference = job.reference.model
    if reference is None:
        return [job.model]
    other = job.model.model_copy(
        update={"path": reference, "revision": None, "weights": "pretrained", "lora": None, "frozen": "fp32"}
    )
    return [job.model, other]


def folder_fingerprint(folder: Path, *, weights: bool) -> str:
    """64 hex digits over the configuration and the weights: all names, types, shapes, and a sample of each tensor.

    Only a sample, since reading all bytes would take as long as loading. Training changes every part of a tensor, so
    weights of two trainings differ in the sample. A single altered number is not noticed.

    Args:
        folder: the model's folder.
        weights: whether to include the weights.

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
    """The header of a safetensors file: 8 bytes of length, then JSON, then the tensors.

    Raises:
        UserError: the file is torn, or not a safetensors file.
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
            for name, item in json_object(content).items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not a safetensors file, or torn. Copy it again") from error
    end = max((tensor.end for tensor in found.values()), default=0)
    if end > size:
        raise UserError(f"{file}: torn ({size} bytes, and its tensors end at byte {end}). Copy it again")
    return found


def _stored(file: Path, beginning: int, item: dict[str, Any]) -> StoredTensor:
    """One entry of a header. Its offsets count from `beginning`, the offset of the tensors in the file.

    Raises:
        ValueError: the entry has impossible offsets, shapes or types. Malformed entries may raise other errors.
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
        return read_json_object(file, most_bytes)
    except OSError as error:
        raise UserError(f"{otherwise}: {file.name} cannot be read: {error.strerror or error}") from error
    except NoJson as error:
        raise UserError(f"{file}: {error}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
