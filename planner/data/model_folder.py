"""The folder of a Hugging Face model, found once and handed down. Names on the hub are resolved here and nowhere else.

Loads without torch, transformers and the hub's client.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from planner.base.disk import expanded, open_regular, place_text, read_bounded
from planner.base.json_text import NoJson, json_object, shown
from planner.base.permissions import is_within
from planner.base.text import how_to_install
from planner.data.safetensors_headers import StoredTensor, tensors_in
from planner.data.tokenizer_files import FILES, OTHER_VOCABULARIES, vocabulary_file
from planner.errors import UserError, shortened
from planner.job import HfModel

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"

# What planner downloads of a repository on the hub: no weights of other frameworks, no pickles, no code.
_TEXTS = ("*.json", "*.jinja", "*.txt", "tokenizer*", *OTHER_VOCABULARIES)
_WEIGHTS = "*.safetensors"
_TOKENIZER = (CONFIG, "*.jinja", *FILES)
# About ten times the largest known files: indexes of 15 MB, tokenizers of 35 MB, templates of 50 kB.
_MAX_CONFIG_BYTES, _MAX_JSON_BYTES = 2**22, 2**28
# The fingerprint includes this many bytes from the middle of each tensor.
_SAMPLED_BYTES = 256
_MODEL_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_HUB_TIMEOUT_S = 20.0
_MOST_PATH, _MOST_REASON = 200, 200


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """A Hugging Face model of a job, and its files on this machine. Configuration and headers are read once."""

    model: HfModel
    """as the job names it"""
    path: Path

    @classmethod
    def here(cls, model: HfModel) -> "ModelFolder | None":
        """The model's local folder, or its folder in the hub's cache. None if files must be downloaded.

        Raises:
            UserError: `model.path` is neither a folder nor a name on the hub.
        """
        return cls._here(model, cls._has_weights if model.weights == "pretrained" else lambda _: True)

    @classmethod
    def find(cls, model: HfModel) -> "ModelFolder":
        """The model's local folder, or its folder in the hub's cache. What is missing in the cache is downloaded.

        A cached model is not updated: all workers see the same files, and a run needs no network.

        Raises:
            UserError: there is no such folder, and the hub has no such name or cannot be reached.
        """
        weights = (_WEIGHTS,) if model.weights == "pretrained" else ()
        return cls.here(model) or cls(model=model, path=_downloaded(model, (*_TEXTS, *weights)))

    @classmethod
    def find_tokenizer(cls, model: HfModel) -> "ModelFolder":
        """The folder with the model's configuration and tokenizer. Only these are downloaded.

        Raises:
            UserError: there is no such folder, and the hub has no such name or cannot be reached.
        """
        found = cls._here(model, lambda folder: vocabulary_file(folder.path) is not None)
        # Another process may be downloading it.
        if found and (_local(model.path) is not None or _has_files(model, _TOKENIZER)):
            return found
        try:
            return cls(model=model, path=_downloaded(model, _TOKENIZER))
        except UserError:
            if found is None:
                raise
            return found  # without a network, what the user has put into the cache

    @classmethod
    def _here(cls, model: HfModel, is_whole: Callable[["ModelFolder"], bool]) -> "ModelFolder | None":
        if (local := _local(model.path)) is not None:
            return cls(model=model, path=local)
        cached = cached_folder(model.path, model.revision)
        folder = None if cached is None else cls(model=model, path=cached)
        return folder if folder and is_whole(folder) else None

    def _has_weights(self) -> bool:
        """Whether the cache has all weights, or some that the hub does not have in a form that planner reads."""
        try:
            return all(file.exists() for file in self._weight_files())
        except UserError:
            return (self.path / INDEX).exists() or any(self.path.glob("*.bin"))

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The object in `config.json`, with the model's family as `model_type`.

        Raises:
            UserError: it cannot be read, or is not the configuration of a Hugging Face model.
        """
        if not (file := self.path / CONFIG).exists():
            raise UserError(f"{self.path}: not the folder of a Hugging Face model: it has no {CONFIG}")
        found = self.read_json(CONFIG, _MAX_CONFIG_BYTES)
        if "model_type" not in found:
            raise UserError(f"{file}: it has no model_type, so it is not the file of a Hugging Face model")
        if not isinstance(kind := found["model_type"], str) or not _MODEL_TYPE.fullmatch(kind):
            raise UserError(
                f"{file}: model_type is {shown(kind)}, which neither planner nor transformers knows. Copy the file "
                "again"
            )
        return found

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Name -> tensor, for all safetensors files of the model. Only headers are read.

        Raises:
            UserError: there are no such files, or one is torn or missing.
        """
        return {name: tensor for file in self._weight_files() for name, tensor in tensors_in(file).items()}

    def _weight_files(self) -> list[Path]:
        """The safetensors files with the model's weights. They may be missing.

        Raises:
            UserError: no file names them, or the index is wrong.
        """
        index = self.path / INDEX
        if not index.exists() and (self.path / _SINGLE).exists():
            return [self.inside(_SINGLE)]
        if not index.exists():
            is_pickled = any(self.path.glob("*.bin"))
            why = ". Its weights are pickles: save them as safetensors first" if is_pickled else ""
            raise UserError(f"{self.path}: no {_SINGLE} and no {INDEX}{why or ' (weights: random needs none)'}")
        content = self.read_json(INDEX)
        if not isinstance(where := content.get("weight_map"), dict):
            found = shown(where) if "weight_map" in content else "missing"
            raise UserError(f"{index}: its weight_map is {found}, and must be an object. Copy it again")
        names = sorted({str(name) for name in where.values()})
        if foreign := [name for name in names if Path(name).name != name or name == ".." or not name.isprintable()]:
            raise UserError(f"{index}: it names {foreign[0]!r}, which is not a file in its folder")
        return [self.inside(name) for name in names]

    def fingerprint(self) -> str:
        """64 hex digits over the configuration and the weights: all names, types, shapes, and a sample of each tensor.

        Only a sample, since reading all bytes would take as long as loading. Training changes every part of a tensor,
        so weights of two trainings differ in the sample. A single altered number is not noticed. If the job draws the
        weights, the fingerprint is over the configuration alone.

        Raises:
            UserError: the files cannot be read.
        """
        _ = self.config  # raises an error if it is no configuration
        digest = sha256(self._content(CONFIG, _MAX_CONFIG_BYTES))
        tensors = self.tensors if self.model.weights == "pretrained" else {}
        for name, tensor in sorted(tensors.items(), key=lambda item: (str(item[1].file), item[1].start)):
            middle = (tensor.start + tensor.end) // 2
            begin = max(tensor.start, middle - _SAMPLED_BYTES // 2)
            # A name from JSON may contain a lone surrogate, which UTF-8 cannot encode.
            digest.update(f"{name} {tensor.dtype} {tensor.shape} ".encode(errors="surrogatepass"))
            with open_regular(tensor.file) as stream:
                stream.seek(begin)
                digest.update(stream.read(min(_SAMPLED_BYTES, tensor.end - begin)))
        return digest.hexdigest()

    def inside(self, name: str) -> Path:
        """The file of this name. It may be missing.

        Links within the hub's cache are allowed: its folders link to the files of all versions.

        Raises:
            UserError: it is a link out of the folder, which could expose private files.
        """
        file, is_cached = self.path / name, self.path.parent.name == "snapshots"
        kept = self.path.parent.parent / "blobs" if is_cached else self.path
        if not any(is_within(str(file), str(place)) for place in (self.path, kept)):
            raise UserError(f"{file}: a link that leads out of the model's folder. Replace it by a copy")
        return file

    def read_json(self, name: str, most_bytes: int = _MAX_JSON_BYTES) -> dict[str, Any]:
        """The object in a JSON file of the folder.

        Raises:
            UserError: the file cannot be read, or holds something else.
        """
        try:
            return json_object(self._content(name, most_bytes))
        except NoJson as error:
            raise UserError(f"{self.path / name}: {error}") from error

    def files(self, *patterns: str) -> list[Path]:
        """The files of the folder whose names match a pattern, sorted.

        Raises:
            OSError: the folder cannot be read.
            UserError: a file is a link out of the folder.
        """
        return [self.inside(file.name) for file in sorted(self.path.iterdir()) if any(map(file.match, patterns))]

    def require_readable(self) -> None:
        """Check what libraries open, since they wait for pipes and follow links, and the configuration.

        Raises:
            UserError: a file is not regular, leads out of the folder or is too large, or the configuration is wrong.
        """
        try:
            for file in self.files(*_TEXTS, _WEIGHTS):
                with open_regular(file) as stream:
                    size = stream.seek(0, 2)
                if size > _MAX_JSON_BYTES and not file.match(_WEIGHTS):
                    raise UserError(f"{file}: it has {size} bytes, and planner reads at most {_MAX_JSON_BYTES}")
        except IsADirectoryError as error:
            raise UserError(f"{error.filename}: a folder where a model has a file. Remove it") from error
        except OSError as error:
            raise UserError(f"{error.filename or self.path}: cannot be read: {error.strerror or error}") from error
        _ = self.config

    def _content(self, name: str, most_bytes: int) -> bytes:
        try:
            return read_bounded(file := self.inside(name), most_bytes)
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error


def _local(path: str) -> Path | None:
    """The folder at a model's path. None if the path is a name that the hub may have.

    Raises:
        UserError: it is neither.
    """
    local = expanded(path)
    try:
        is_folder, is_there = local.is_dir(), local.exists()
    except OSError as error:  # such as a name that is too long
        reason = f"cannot be opened: {error.strerror}"
        raise UserError(f"model.path: {path[:80]!r} {reason}. Write the folder that has {CONFIG}") from error
    if is_folder:
        return local
    if is_there or path.startswith(("/", ".", "~")) or path.count("/") > 1:
        raise UserError(_no_folder_text(path, "not a folder" if is_there else "no such folder"))
    return None


def cached_folder(name: str, revision: str | None = None) -> Path | None:
    """The folder of a model in the hub's cache. Some of its files may be missing. None if it has no configuration.

    Raises:
        UserError: this is not a name on the hub, or the hub's client is not installed.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise UserError(f"model.kind hf needs transformers: {how_to_install('hf')}")
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(name, CONFIG, revision=revision)
    except HFValidationError as error:
        raise UserError(_no_folder_text(name, "no such folder, and not a name on the hub")) from error
    return Path(config).parent if isinstance(config, str) else None


def _has_files(model: HfModel, patterns: tuple[str, ...]) -> bool:
    """Whether the cache has all files of these names that the hub has, as far as the cache knows them."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot_download(model.path, revision=model.revision, allow_patterns=list(patterns), local_files_only=True)
    except LocalEntryNotFoundError:
        return False
    return True


def _downloaded(model: HfModel, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    try:
        # `snapshot_download` asks without a time limit.
        HfApi().repo_info(model.path, revision=model.revision, timeout=_HUB_TIMEOUT_S)
        return Path(snapshot_download(model.path, revision=model.revision, allow_patterns=list(patterns)))
    except Exception as error:  # errors of the hub's client, of httpx, and OSError
        raise UserError(not_found_text(model.path, error)) from error


def _no_folder_text(path: str, what: str) -> str:
    path = path[:_MOST_PATH]
    return f"model.path: {path}{place_text(path)}: {what}. Write the folder that has {CONFIG}"


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
        first = next(iter(str(error).splitlines()), "")
        reason = f"{shortened(f'{type(error).__name__}: {first}', _MOST_REASON)}. Check the network, or write a folder"
    return f"model.path: no folder {path}{place_text(path)}, nor in {HF_HUB_CACHE}, nor on the hub: {reason}"
