"""A trainer that has the attributes that `planner.trl.refusals` reads, and no model."""

from types import SimpleNamespace


class SFTTrainer:
    """Stands in for TRL's."""

    def compute_loss(self):
        """TRL's."""


class DPOTrainer(SFTTrainer):
    """Stands in for TRL's."""

    def compute_loss(self):
        """TRL's."""


class Trainer(SFTTrainer):
    """Stands in for transformers'."""

    def compute_loss(self):
        """Theirs."""


SFTTrainer.__module__ = "trl.trainer.sft_trainer"
DPOTrainer.__module__ = "trl.trainer.dpo_trainer"
Trainer.__module__ = "transformers.trainer"


def made(kind=SFTTrainer, **changes):
    """A trainer without anything to refuse. `changes` are attributes of it, or of its `args`."""
    trainer = kind()
    trainer.args = SimpleNamespace(
        gradient_accumulation_steps=1,
        auto_find_batch_size=False,
        train_sampling_strategy="random",
        accelerator_config=SimpleNamespace(split_batches=False, dispatch_batches=None),
        neftune_noise_alpha=None,
        save_only_model=False,
        save_strategy="steps",
        average_tokens_across_devices=True,
        n_gpu=1,
    )
    trainer.model = SimpleNamespace(config=SimpleNamespace(output_router_logits=False))
    trainer.train_dataset = [1, 2, 3]
    trainer.compute_loss_func = None
    trainer.is_deepspeed_enabled = False
    trainer.loss_types = ["sigmoid"]
    trainer._loss_shifts_labels = trainer.model_accepts_loss_kwargs = True
    trainer.get_tp_size = trainer.get_cp_size = trainer.get_sp_size = lambda: 1
    for name, value in changes.items():
        setattr(trainer.args if hasattr(trainer.args, name) or name == "sync_ref_model" else trainer, name, value)
    return trainer
