"""The folders of the Hugging Face models that a job names: the one that is trained, and its reference model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.data.model_checks import require_extra, require_fit
from planner.data.model_folder import ModelFolder
from planner.data.tokenizer_files import FAST
from planner.errors import UserError
from planner.job import HfModel, Job


@dataclass(frozen=True, kw_only=True)
class JobFolders:
    """The folders of a job's models. None: the job names no such model, or its folder is not on this machine."""

    model: ModelFolder | None
    reference: ModelFolder | None

    @classmethod
    def of(cls, job: Job, look: Callable[[HfModel], ModelFolder | None]) -> "JobFolders":
        """Look for each model by `ModelFolder.here` or `ModelFolder.find`.

        Raises:
            UserError: as `look`.
        """
        model, path = job.model, job.reference.model
        if not isinstance(model, HfModel):
            return cls(model=None, reference=None)
        changes = {"path": path, "revision": None, "weights": "pretrained", "lora": None, "frozen": "fp32"}
        return cls(model=look(model), reference=look(model.model_copy(update=changes)) if path else None)

    def fingerprint(self) -> str:
        """The model's fingerprint. If a reference model is named, a space and its own follow. Empty without a model.

        Raises:
            UserError: the files cannot be read.
        """
        return " ".join(folder.fingerprint() for folder in (self.model, self.reference) if folder)

    def require_same_tokens(self) -> None:
        """Check that the model and its reference model have one vocabulary, if both are on this machine.

        Raises:
            UserError: their vocabularies differ.
        """
        ours, theirs = self.model, self.reference
        if ours is None or theirs is None:
            return
        here, there = ours.config.get("vocab_size"), theirs.config.get("vocab_size")
        if here != there:
            raise UserError(
                f"objective.reference_model: {theirs.path} knows {there} tokens and {ours.path} {here}. "
                "Name a model with the tokenizer of the policy"
            )
        here, there = _tokens(ours), _tokens(theirs)
        if here and there and here != there:
            raise UserError(
                f"objective.reference_model: the tokenizer of {theirs.path} has other tokens than that of "
                f"{ours.path}. Name a model with the tokenizer of the policy"
            )


def check_here(job: Job) -> JobFolders:
    """Check those models of a job that are on this machine. Nothing is downloaded.

    Raises:
        UserError: a model cannot be trained as the job says.
    """
    if isinstance(job.model, HfModel):
        require_extra(lora=job.model.lora is not None)
    folders = JobFolders.of(job, ModelFolder.here)
    for folder in filter(None, (folders.model, folders.reference)):
        require_fit(folder)
    folders.require_same_tokens()
    return folders


def of_trained(fingerprint: str) -> str:
    """The part of a job's `fingerprint` that is the trained model's. Empty if there is none."""
    return fingerprint.partition(" ")[0]


def _tokens(folder: ModelFolder) -> Any:
    """The tokens in a fast tokenizer's file, None if there is no such file."""
    if not (folder.path / FAST).exists():
        return None
    found = folder.read_json(FAST)
    added, model = found.get("added_tokens") or [], found.get("model") or {}
    if not isinstance(added, list) or not isinstance(model, dict) or not all(isinstance(each, dict) for each in added):
        raise UserError(f"{folder.path / FAST}: not the file of a tokenizer. Copy it again")
    return model.get("vocab"), [(token.get("id"), token.get("content")) for token in added]
