"""The memory that a job's workers need, before it trains. A model is measured once on a machine, then read from a file.

Measuring imports torch and takes seconds. The file is named by all that the sizes depend on.
"""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from hashlib import sha256
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from planner.base.disk import cache_folder
from planner.base.format_versions import STORED
from planner.base.json_text import read_json_object
from planner.base.permissions import make_folder, opener_within
from planner.base.version import VERSION
from planner.data.model_folder import ModelFolder
from planner.errors import UserError
from planner.job import HfModel, Job
from planner.job.memory import Device, JobMemory, job_memory, needs_second_model, sample_size
from planner.job.model import OwnModel
from planner.plan.commit_size import NotKnown
from planner.plan.memory import Footprint, Live, Pass, SampleSize, Unit, Units

FOOTPRINTS = "footprints"
"""what is stored, and the folder in the cache"""
_MAX_BYTES = 2**22
# Of numbers in such a file: no memory has so many bytes.
_MOST = 2**63
# Settings of `train` that change a pass. `compile` is not one: blocks are measured uncompiled.
_OF_TRAIN = ("precision", "activation_checkpointing")


class Measure(Protocol):
    """`planner.train.footprint.footprint`, which needs torch."""

    def __call__(
        self, job: Job, folder: ModelFolder | None, reference: ModelFolder | None, sample: SampleSize, device: Device
    ) -> Footprint:
        """Measure a job's model."""
        ...


def memory_of(
    job: Job,
    device: Device,
    measure: Measure,
    tell: Callable[[str], None] = lambda _: None,
    *,
    longest: int | None = None,
) -> JobMemory | NotKnown:
    """What the job's workers need of memory, or why that is not known. Nothing is downloaded.

    Args:
        job: the job.
        device: of its workers.
        measure: is called for a model that was not measured here before.
        tell: is told, before a model is measured, what is done.
        longest: tokens of the longest sample of its data. None: as many as the job allows.
    """
    if isinstance(job.model, OwnModel):
        return NotKnown(reason="your own loop makes the model")
    try:
        folder, reference = _folders(job)
        sample = sample_size(job, longest)
        found = _footprint(job, folder, reference, sample, device, measure, tell)
    except UserError as error:
        return NotKnown(reason=str(error))
    return found if isinstance(found, NotKnown) else job_memory(job, found, device, longest)


def _folders(job: Job) -> tuple[ModelFolder | None, ModelFolder | None]:
    """Those of the trained model and of a reference that is another one.

    Raises:
        UserError: a folder cannot be read, or is not on this machine.
    """
    if not isinstance(job.model, HfModel):
        return None, None
    models = [job.model]
    if needs_second_model(job) and (path := job.reference.model) is not None:
        models.append(job.model.model_copy(update={"path": path, "revision": None, "lora": None, "frozen": "fp32"}))
    folders = [_here(model) for model in models]
    return folders[0], folders[1] if len(folders) > 1 else None


def _here(model: HfModel) -> ModelFolder:
    folder = ModelFolder.here(model)
    if folder is None:
        raise UserError(f"{model.path} is not on this machine. Run this on one that has it")
    return folder


def _footprint(
    job: Job,
    folder: ModelFolder | None,
    reference: ModelFolder | None,
    sample: SampleSize,
    device: Device,
    measure: Measure,
    tell: Callable[[str], None],
) -> Footprint | NotKnown:
    file = cache_folder() / FOOTPRINTS / f"{_digest(job, folder, reference, sample, device)}.json"
    if (kept := _read(file, sample)) is not None:
        return kept
    tell(f"measuring what {job.name} needs of memory, without a device: some seconds, once on this machine")
    try:
        found = measure(job, folder, reference, sample, device)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001  a model's own code may do anything with tensors that have no values
        reason = " ".join(str(error).split())[:200]
        return NotKnown(reason=f"the model cannot be measured without values ({type(error).__name__}: {reason})")
    _write(file, found)
    return found


def _digest(
    job: Job, folder: ModelFolder | None, reference: ModelFolder | None, sample: SampleSize, device: Device
) -> str:
    """32 hex digits over all that a footprint depends on."""
    facts = {
        "format": STORED[FOOTPRINTS],
        "planner": VERSION,
        "packages": [_version(name) for name in ("torch", "transformers", "peft")],
        "device": device,
        "sample": asdict(sample),
        "train": {name: getattr(job.train, name) for name in _OF_TRAIN},
        "model": job.model.model_dump(mode="json", exclude={"path", "revision", "chat_template", "weights"}),
        "configs": [each and each.config for each in (folder, reference)],
        "has_reference": needs_second_model(job),
    }
    return sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _read(file: Path, sample: SampleSize) -> Footprint | None:
    """What was measured before. None if there is nothing that can be used."""
    try:
        kept: Any = read_json_object(file, _MAX_BYTES)
        if kept.pop("format") != STORED[FOOTPRINTS]:
            return None
        found = _of_json(kept)
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None
    return found if found.sample == sample and _is_usable(found) else None


def _is_usable(found: Footprint) -> bool:
    """Whether its numbers can be those of a measured model. A file in the cache may be damaged."""
    units = [*found.units.all, *(found.reference.all if found.reference else ())]
    passes = [each for _, each in found.measured]
    lives = [live for each in passes for live in each.parts()]
    numbers = [number for part in (*units, *lives) for number in vars(part).values()]
    counts = [count for count, _ in found.measured]
    return (
        all(type(number) is int and 0 <= number < _MOST for number in numbers)
        and all(len(each.blocks) == len(found.units.blocks) for each in passes)
        and len(counts) > 1
        and all(low < high for low, high in pairwise([0, *counts]))
    )


def _of_json(kept: Any) -> Footprint:
    return Footprint(
        units=_units(kept["units"]),
        reference=kept["reference"] and _units(kept["reference"]),
        sample=SampleSize(**kept["sample"]),
        measured=tuple((int(count), _pass(found)) for count, found in kept["measured"]),
    )


def _units(kept: Any) -> Units:
    return Units(rest=Unit(**kept["rest"]), blocks=tuple(Unit(**block) for block in kept["blocks"]))


def _pass(kept: Any) -> Pass:
    forward, loss, *blocks, end = (Live(peak=int(peak), end=int(end)) for peak, end in kept)
    return Pass(forward=forward, loss=loss, blocks=tuple(blocks), end=end)


def _write(file: Path, found: Footprint) -> None:
    """Keep it. A disk that fails, or is full, only means that the model is measured again."""
    measured = [[count, [[part.peak, part.end] for part in each.parts()]] for count, each in found.measured]
    kept = {**asdict(found), "measured": measured, "format": STORED[FOOTPRINTS]}
    half = file.with_suffix(f".{os.getpid()}.half")
    with contextlib.suppress(OSError):
        make_folder(file.parent, cache_folder())
        with open(half, "w", opener=opener_within(cache_folder())) as stream:
            json.dump(kept, stream)
        half.replace(file)
