"""Where a run stands in its data, in the trainer's own checkpoint: `stateful_callbacks` of trainer_state.json.

Nothing in it depends on the number of processes. Reading it needs neither torch nor transformers.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from planner.base.format_versions import STORED, refusal
from planner.data.user_dataset import check_sum
from planner.errors import ResumeRefused, StoreError

STATE_FILE = "trainer_state.json"
"""of transformers, the last file of a checkpoint"""
CALLBACK = "ExactPosition"
"""under this name the position is in the file. It is that of the class in planner.trl.callback"""

_FINGERPRINTED = 64
"""number of evenly spaced rows in the fingerprint. Reading all of them could take an hour at each start"""
_NOT_DATA = frozenset({"ref_chosen_logps", "ref_rejected_logps"})
"""columns that are computed, and so are only equal up to rounding"""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The place of a run in its data, and what that place depends on."""

    global_batch: int
    seed: int
    """of the order"""
    num_rows: int
    fingerprint: str
    """of some rows, as the trainer tokenized them"""
    cursor: int
    """samples consumed"""
    world_size: int
    """processes of the run that wrote it. A resumed run may have another number"""
    format: int = STORED["trl"]


_SAME = ("global_batch", "seed", "num_rows", "fingerprint")


def fingerprint(rows: Any) -> str:
    """A digest of the number of rows and of at least 64 rows at equal distances. All, if there are fewer than 128."""
    digest = hashlib.sha256(f"{len(rows)} rows".encode())
    for number in range(0, len(rows), max(len(rows) // _FINGERPRINTED, 1)):
        row = rows[number]
        if isinstance(row, Mapping):
            row = {name: row[name] for name in sorted(row) if name not in _NOT_DATA}
        digest.update(check_sum(number, row).to_bytes(8, "little"))
    return digest.hexdigest()[:16]


def newest_whole(output_dir: str) -> str | None:
    """The newest checkpoint of a folder with all its files. None if there is none.

    transformers writes trainer_state.json last. A process that dies during a save leaves a folder without it.
    """
    folder = Path(output_dir)
    found = [each for each in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", each.name)]
    for checkpoint in sorted(found, key=lambda each: int(each.name.rpartition("-")[2]), reverse=True):
        if _is_whole(checkpoint):
            return str(checkpoint)
    return None


def _is_whole(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE_FILE).read_text())
    except (OSError, ValueError):
        return False
    return (checkpoint / "scheduler.pt").exists() and any(checkpoint.glob("optimizer*"))


def read_position(checkpoint: str) -> Position:
    """The position in a checkpoint.

    Raises:
        StoreError: it has none, or one of another format.
    """
    try:
        state = json.loads((Path(checkpoint) / STATE_FILE).read_text())
        stored = state["stateful_callbacks"][CALLBACK]["args"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{checkpoint} has no position of planner.trl, so its place in the data is not known. Resume from a "
            "checkpoint that an exact trainer wrote"
        ) from error
    if why := refusal(stored.get("format"), "trl"):
        raise StoreError(f"the position in {checkpoint} was {why}. Use the version of planner that wrote it")
    if set(stored) != {field.name for field in fields(Position)}:
        raise StoreError(f"the position in {checkpoint} is damaged. Resume from another checkpoint")
    return Position(**stored)


def require_same(before: Position, now: Position, checkpoint: str) -> None:
    """Check that a run goes on in the data where the checkpoint stopped.

    Raises:
        ResumeRefused: the global batch, the seed or the rows differ.
    """
    old, new = asdict(before), asdict(now)
    changed = [f"{name} {old[name]} -> {new[name]}" for name in _SAME if old[name] != new[name]]
    if changed:
        raise ResumeRefused(
            f"{checkpoint} was trained with other data or another batch: {', '.join(changed)}. Samples would be lost "
            "or repeated. Use what it was trained with, or start anew in another output_dir"
        )
