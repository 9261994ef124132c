"""The mixin that stands before a trainer's class and gives it planner's batches.

It overrides what decides which rows a process computes, what they weigh, and where a resumed run goes on. The loss, the
optimizer, the schedule, logs, callbacks and checkpoints are the trainer's.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor
from torch.utils.data import DataLoader

from planner.errors import DataError, PlannerError, StoreError, UserError
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.optimizer_step import seed_randomness
from planner.trl.callback import ExactPosition
from planner.trl.gathering import uneven_gathers
from planner.trl.micro_batches import MicroBatchSampler, RunLength, Shares, run_length
from planner.trl.position import Position, fingerprint, newest_whole, read_position, require_same
from planner.trl.refusals import base_trainer, reasons

_NO_LOSS = -100
"""label of a token without loss, in transformers and TRL"""
_PER_SAMPLE = ("rewards/", "logps/")
"""prefixes of TRL's metrics that are means over the samples of one round"""


class ExactBatch:
    """Planner's batches for a trainer. `planner.trl.exact` makes the class."""

    global_batch: ClassVar[int]
    """G: samples of an optimizer step"""

    # Of transformers' Trainer.
    args: Any
    state: Any
    accelerator: Any
    data_collator: Any
    train_dataset: Any
    loss_is_scaled_for_ga: bool | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the trainer. It takes the arguments of its class.

        Raises:
            UserError: a setting, the data or the loss would depend on the number of processes.
        """
        self._weight = 1.0
        self._round = self._steps_to_skip = 0
        self._base.__init__(*args, **kwargs)
        if found := reasons(self):
            raise UserError("\n".join(found))
        self._shares = self._make_shares()
        self.args.gradient_accumulation_steps = self._shares.num_rounds
        self._position = self._start()
        self._base.add_callback(ExactPosition(self._position))
        if self._is_mean_per_sample:
            self.loss_is_scaled_for_ga = True  # by `mean_weight`, so the trainer must not divide it by the rounds

    @property
    def _base(self) -> Any:
        """The methods of the trainer's class. As Any, because a type checker looks for them in `object`."""
        return super()

    @property
    def _is_mean_per_sample(self) -> bool:
        """Whether the loss is a mean over a micro-batch's samples. Else it is a sum over tokens, already divided."""
        base = base_trainer(type(self))
        return base is not None and base.__name__ == "DPOTrainer"

    def _make_shares(self) -> Shares:
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        sizes = BatchSizes(global_batch=self.global_batch, max_micro=self.args.per_device_train_batch_size)
        return Shares(
            plan=make_plan(sizes, self.accelerator.num_processes),
            order=Order(num_rows=len(self.train_dataset), seed=seed),
            rank=self.accelerator.process_index,
        )

    def _start(self) -> Position:
        plan, order = self._shares.plan, self._shares.order
        return Position(
            global_batch=plan.global_batch,
            seed=order.seed,
            num_rows=order.num_rows,
            fingerprint=fingerprint(self.train_dataset),
            cursor=0,
            world_size=plan.world_size,
        )

    @property
    def _length(self) -> RunLength:
        return run_length(
            num_rows=self._shares.order.num_rows,
            global_batch=self.global_batch,
            max_steps=self.args.max_steps,
            num_epochs=self.args.num_train_epochs,
        )

    # ---- Which rows this process computes ----

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The micro-batches of this process. accelerate does not prepare them, because it would shard them again."""
        dataset, collate = self.train_dataset, self.data_collator
        if hasattr(dataset, "column_names"):
            dataset = self._base._remove_unused_columns(dataset, description="Training")
        else:
            collate = self._base._get_collator_with_removed_columns(collate, description="Training")
        return DataLoader(
            dataset,
            batch_sampler=MicroBatchSampler(
                shares=self._shares, steps=self._length.steps_per_epoch, first_step=self._first_step_of_epoch
            ),
            collate_fn=collate,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def _first_step_of_epoch(self) -> int:
        """The step from which the trainer iterates. After a resume it skips the steps that it has done."""
        skipped, self._steps_to_skip = self._steps_to_skip, 0
        return int(self.state.global_step) - skipped

    def set_initial_training_values(self, _args: Any, _dataloader: Any) -> tuple[int, int, int, int, int, int, int]:
        """The trainer's lengths, from the global batch alone."""
        length = self._length
        return (
            length.num_epochs,
            length.steps_per_epoch,
            self._shares.order.num_rows,
            length.total_steps * self.global_batch,
            self.global_batch,
            length.steps_per_epoch * self._shares.num_rounds,
            length.total_steps,
        )

    def get_total_train_batch_size(self, _args: Any) -> int:
        """G, at any number of processes."""
        return self.global_batch

    # ---- What they weigh ----

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The micro-batches of a step, and the tokens of the whole global batch that have loss. A ghost's have none.

        Raises:
            DataError: the loss is per token, and the collator made no labels.
        """
        self._round = 0
        found: tuple[list[Any], Any]
        found = self._base.get_batch_samples(self._without_ghosts_labels(epoch_iterator), num_batches, device)
        if found[1] is None and not self._is_mean_per_sample:
            raise DataError(
                "the batches of the trainer have no `labels` that can be counted, so its loss cannot be divided by the "
                "tokens of the whole global batch. Use a data collator that makes labels"
            )
        return found

    def _without_ghosts_labels(self, batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if self._shares.is_ghost(number):
                for name in ("labels", "shift_labels"):
                    if name in batch:
                        batch[name].fill_(_NO_LOSS)
            yield batch

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of one micro-batch."""
        number, step = self._round, int(self.state.global_step)
        self._round += 1
        # Dropout depends on the rows of the micro-batch, and not on a process or on the run's history.
        seed_randomness(self.args.seed, self._shares.position(step, number))
        self._weight = self._shares.mean_weight(number) if self._is_mean_per_sample else 1.0
        try:
            with uneven_gathers(self.accelerator, self._shares.all_samples(number), self._shares.rank):
                loss: Tensor = self._base.training_step(model, inputs, num_items_in_batch)
        finally:
            self._weight = 1.0
        self._weigh_metrics(number)
        return loss

    def _weigh_metrics(self, round_number: int) -> None:
        """TRL logs the mean of the rounds' means. Rounds have unequal sizes here, so each gets its share."""
        share = sum(self._shares.all_samples(round_number)) * self._shares.num_rounds / self.global_batch
        for name, values in getattr(self, "_metrics", {}).get("train", {}).items():
            if name.startswith(_PER_SAMPLE):
                values[-1] *= share

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        """The trainer's loss, weighted so that the average over processes is the mean over the global batch."""
        found = self._base.compute_loss(model, inputs, return_outputs, **more)
        if return_outputs:
            loss, outputs = found
            return loss * self._weight, outputs
        return found * self._weight

    # ---- Where a resumed run goes on ----

    def train(self, resume_from_checkpoint: str | bool | None = None, **more: Any) -> Any:
        """Train, or go on from a checkpoint that any number of processes wrote.

        Args:
            resume_from_checkpoint: a folder; True for the newest whole checkpoint in `output_dir`; or `"newest"` for
                the same, or for the start if there is none.
            **more: passed to the trainer.

        Raises:
            StoreError: there is no whole checkpoint, or it has no position that can be read.
            ResumeRefused: it was trained with another global batch, seed or data.
        """
        checkpoint = self._agreed_checkpoint(resume_from_checkpoint)
        if checkpoint is not None:
            self._require_readable(checkpoint)
        return self._base.train(resume_from_checkpoint=checkpoint, **more)

    def _agreed_checkpoint(self, given: str | bool | None) -> str | None:
        """The checkpoint that rank 0 sees: on shared storage, others may not see the newest yet."""
        from accelerate.utils import broadcast_object_list

        if given not in {True, "newest"}:
            return given or None  # type: ignore[return-value]  # True is dealt with
        found: list[str | None] = [newest_whole(self.args.output_dir)]
        broadcast_object_list(found)
        if found[0] is None and given is True:
            raise StoreError(
                f"no whole checkpoint in {self.args.output_dir}. Start without one, or write "
                'resume_from_checkpoint="newest", which starts anew if there is none'
            )
        return found[0]

    def _require_readable(self, checkpoint: str) -> None:
        """Check the position on every process, and raise the same error on all of them."""
        from accelerate.utils import gather_object

        mine: PlannerError | None = None
        try:
            require_same(read_position(checkpoint), self._position, checkpoint)
        except PlannerError as error:
            mine = error
        errors: list[PlannerError] = [each for each in gather_object([mine]) if each is not None]
        if errors:
            raise errors[0]

    def _init_training_state(self, *args: Any, **more: Any) -> tuple[int, int]:
        """The trainer's own counts of epochs and micro-batches. Both follow from the optimizer steps done."""
        epochs, micro_batches = self._base._init_training_state(*args, **more)
        self._steps_to_skip = micro_batches // self._shares.num_rounds
        return epochs, micro_batches

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Nothing: files of random states are per process, and each micro-batch seeds its own."""
