"""What a model's folder lacks of its tokenizer: files, packages, a class. Says it before or instead of transformers."""

import importlib.util
from pathlib import Path
from typing import Any

from planner.base.json_text import NoJson, read_json_object
from planner.errors import DataError, shortened

FAST = "tokenizer.json"
# One of these has the vocabulary. Without any, transformers makes an empty tokenizer for some models.
_VOCABULARIES = (FAST, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "sentencepiece.bpe.model")
OTHER_VOCABULARIES = ("*.tiktoken", "tekken.json", "vocab.bpe", "*.spm", "*.model")
_BESIDE = ("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.*")
FILES = (*_VOCABULARIES, *OTHER_VOCABULARIES, *_BESIDE)
"""patterns of all files of a tokenizer, in each form that transformers reads"""
_SETTINGS = "tokenizer_config.json"
_MAX_BYTES = 2**28
_MOST_REASON = 200
_PACKAGES = {"sentencepiece": "sentencepiece", "protobuf": "google.protobuf"}
"""package -> its module, for a SentencePiece file"""
_COPY = "Copy the tokenizer's files again"


def vocabulary_file(folder: Path) -> Path | None:
    """A file with the vocabulary of the tokenizer in a folder. None if there is none."""
    found = (file for name in (*_VOCABULARIES, *OTHER_VOCABULARIES) for file in sorted(folder.glob(name)))
    return next(found, None)


def require_vocabulary(folder: Path, where: str) -> None:
    """Check that a folder has a tokenizer's vocabulary, and that the package that reads it is installed.

    Args:
        folder: the model's folder.
        where: names the tokenizer in errors.

    Raises:
        DataError: the folder has no file of a vocabulary, or a package is missing.
    """
    if (found := vocabulary_file(folder)) is None:
        raise DataError(
            f"{where} is missing: {folder} has none of {', '.join(_VOCABULARIES)}. Copy the tokenizer's files there, "
            "or save it there with its save_pretrained"
        )
    if found.suffix in {".model", ".spm", ".tiktoken"} and (missing := _missing_packages(found)):
        raise DataError(
            f"{where}: {found.name} needs {' and '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not "
            f"installed. Write pip install {' '.join(missing)}, or save the tokenizer as {FAST}"
        )


def _missing_packages(file: Path) -> list[str]:
    """The packages that transformers needs for the file. A SentencePiece file is a protobuf, one of tiktoken a text."""
    with file.open("rb") as stream:
        is_protobuf = stream.read(1) == b"\n"
    needed = _PACKAGES if is_protobuf else {"tiktoken": "tiktoken"}
    return [name for name, module in needed.items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package above it
        return False


def why_not_loaded(folder: Path, error: BaseException, classes: Any) -> str:
    """Why a tokenizer was not loaded, and what to do, as a text behind `the tokenizer of NAME`.

    Args:
        folder: the model's folder.
        error: what transformers raised. Its text is shown, shortened, if the files do not explain it.
        classes: the module with the tokenizer classes, transformers.
    """
    for name in (FAST, _SETTINGS):
        if why := _torn(folder / name):
            return f" cannot be loaded: {folder / name} {why}. {_COPY}"
    if why := _foreign_class(folder, classes):
        return why
    reason = shortened(" ".join(str(error).split()) or repr(error), _MOST_REASON)
    return f" cannot be loaded. {_COPY} (transformers: {reason})"


def _torn(file: Path) -> str:
    try:
        read_json_object(file, _MAX_BYTES)
    except OSError:  # it is not there, and need not be
        return ""
    except NoJson as error:
        return f"is {error}"
    return ""


def _foreign_class(folder: Path, classes: Any) -> str:
    """Why the class that the folder names cannot be used. Empty if it names none, or one of transformers."""
    try:
        settings = read_json_object(folder / _SETTINGS, _MAX_BYTES)
    except (OSError, NoJson):
        return ""
    name = settings.get("tokenizer_class")
    if not isinstance(name, str) or hasattr(classes, name) or hasattr(classes, f"{name}Fast"):
        return ""
    shown = shortened(name, 60)
    if settings.get("auto_map"):
        why = "is code of the model's own repository, which planner does not run"
    else:
        why = f"transformers {classes.__version__} does not have"
    return f" cannot be loaded: the class {shown} in {folder / _SETTINGS} {why}. Save the tokenizer as {FAST}"
