"""What an exact trainer refuses, and why."""

import inspect
import re
from types import SimpleNamespace

import pytest
from stand_ins import DPOTrainer, SFTTrainer, Trainer, made

from planner.errors import UserError
from planner.trl import exact
from planner.trl.refusals import COUPLED_DPO, EXACT_DPO, reasons, unknown_trainer


@pytest.mark.parametrize("kind", [SFTTrainer, DPOTrainer, Trainer])
def test_nothing_is_refused_without_a_reason(kind):
    assert reasons(made(kind)) == []


CASES = [
    (SFTTrainer, {"gradient_accumulation_steps": 4}, "gradient_accumulation_steps is 4"),
    (SFTTrainer, {"auto_find_batch_size": True}, "auto_find_batch_size"),
    (SFTTrainer, {"train_sampling_strategy": "group_by_length"}, "'group_by_length'"),
    (SFTTrainer, {"accelerator_config": SimpleNamespace(split_batches=True)}, "split_batches"),
    (SFTTrainer, {"accelerator_config": SimpleNamespace(dispatch_batches=True)}, "dispatch_batches"),
    (SFTTrainer, {"neftune_noise_alpha": 5.0}, "padded length"),
    (SFTTrainer, {"save_only_model": True}, "could not resume"),
    (DPOTrainer, {"sync_ref_model": True}, "no checkpoint has"),
    (SFTTrainer, {"average_tokens_across_devices": False}, "one process's tokens"),
    (SFTTrainer, {"n_gpu": 4}, "use 4 GPUs by DataParallel"),
    (SFTTrainer, {"is_deepspeed_enabled": True}, "DeepSpeed"),
    (SFTTrainer, {"is_distributed_loading_by_transformers": True}, "sharded while it was loaded"),
    (SFTTrainer, {"get_tp_size": lambda: 2}, "tensor parallelism of 2"),
    (SFTTrainer, {"get_cp_size": lambda: 2}, "context parallelism of 2"),
    (SFTTrainer, {"get_sp_size": lambda: 2}, "sequence parallelism of 2"),
    (SFTTrainer, {"train_dataset": iter([1])}, "no rows by number"),
    (SFTTrainer, {"compute_loss_func": len}, "what it divides by"),
    (SFTTrainer, {"model": SimpleNamespace(config=SimpleNamespace(output_router_logits=True))}, "load-balancing"),
    (DPOTrainer, {"loss_types": ["sigmoid", "aot"]}, "'aot' may depend on the split: it sorts"),
    (DPOTrainer, {"loss_types": ["sft"]}, "mean over the tokens"),
    (DPOTrainer, {"loss_types": ["newest"]}, "does not know"),
    (Trainer, {"_loss_shifts_labels": False}, "Use a causal language model"),
    (Trainer, {"model_accepts_loss_kwargs": False}, "Use a causal language model"),
]


@pytest.mark.parametrize(("kind", "changes", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_each_has_its_reason(kind, changes, reason):
    """One, and the one that belongs to it."""
    (found,) = reasons(made(kind, **changes))
    assert reason in found


def test_a_model_without_checkpoints_may_save_itself_alone():
    assert reasons(made(save_only_model=True, save_strategy="no")) == []


def test_dpo_does_not_count_tokens():
    assert reasons(made(DPOTrainer, average_tokens_across_devices=False)) == []


@pytest.mark.process  # importing some of them asks the system for its GPUs
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("KTOTrainer", "mismatched pairs"),
        ("GRPOTrainer", "groups"),
        ("RLOOTrainer", "groups"),
        ("RewardTrainer", "does not know its loss"),
    ],
)
def test_other_trainers_are_refused_by_name(name, why):
    trl = pytest.importorskip("trl")
    with pytest.raises(UserError, match=f"{name} cannot be split exactly: .*{why}"):
        exact(getattr(trl, name), global_batch=8)


def test_a_loss_of_ones_own_is_refused():
    class Mine(SFTTrainer):
        def compute_loss(self):
            """Whatever."""

    Mine.__module__ = "mine"
    assert "a compute_loss of its own" in unknown_trainer(Mine)


def test_a_subclass_that_keeps_the_loss_is_as_good_as_its_base():
    class Mine(SFTTrainer):
        """Adds a log."""

    Mine.__module__ = "mine"
    assert unknown_trainer(Mine) == ""


@pytest.mark.parametrize("global_batch", [0, -1, 2**20 + 1])
def test_a_global_batch_out_of_range_is_refused(global_batch):
    trl = pytest.importorskip("trl")
    with pytest.raises(UserError, match=rf"global_batch is {global_batch}"):
        exact(trl.SFTTrainer, global_batch=global_batch)


def test_every_dpo_loss_of_trl_is_judged():
    """A new one in TRL makes this fail, and is refused until somebody has read it."""
    trl = pytest.importorskip("trl")
    found = set(re.findall(r'loss_type == "([a-z_]+)"', inspect.getsource(trl.DPOTrainer._compute_loss)))
    assert found <= EXACT_DPO | set(COUPLED_DPO)
    assert found >= EXACT_DPO
