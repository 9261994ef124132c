"""The callback that keeps the position in the trainer's checkpoints. Importing it loads transformers."""

from dataclasses import asdict, replace
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from planner.trl.position import Position


class ExactPosition(TrainerCallback, ExportableState):  # type: ignore[misc]  # transformers has no types
    """Counts the samples consumed. transformers writes `state()` into trainer_state.json with every checkpoint."""

    def __init__(self, position: Position | None = None, **stored: Any) -> None:
        """Count from `position`, or from what `state` returned, which is how transformers makes it again."""
        self.position = position or Position(**stored)

    def state(self) -> dict[str, Any]:
        """The position as the arguments that make this callback again."""
        return {"args": asdict(self.position), "attributes": {}}

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        """Count a step. The trainer's epoch is derived from its loop. The place in the data is exact."""
        position = self.position
        self.position = replace(position, cursor=state.global_step * position.global_batch)
        state.epoch = self.position.cursor / position.num_rows
