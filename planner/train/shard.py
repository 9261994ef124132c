"""Makes and shards a job's model: FSDP2 per block, with gradients summed instead of averaged."""

from collections import Counter
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from planner.data.model_folder import ModelFolder
from planner.errors import TrainingFailed
from planner.events.training import AttentionChosen
from planner.job import GptModel, Model, Train
from planner.job.compute import VARLEN, kernels_of
from planner.plan.commit_size import ModelShapes
from planner.train.collectives import let_fsdp_sum_gradients, use_own_collectives
from planner.train.earlier_weights import EarlierWeights
from planner.train.models import varlen_attention
from planner.train.models.blocks import compile_block
from planner.train.models.first_weights import compute_buffers, draw, draw_adapters, read, stored_buffers
from planner.train.models.four_bit import quantize
from planner.train.models.gpt import Gpt
from planner.train.models.hf import HfCausal, bare_copy, build_for_shapes, build_on_meta, computable_attention
from planner.train.world import World


def make_model(
    config: Model | ModelFolder,
    train: Train,
    world: World,
    *,
    first_weights: bool = True,
    earlier: EarlierWeights | None = None,
    auto_attention: tuple[str, ...] = ("sdpa",),
) -> nn.Module:
    """A job's sharded model with its first weights, which are equal at every world size.

    A model of transformers is given by its folder. Without `first_weights`, trained parameters are uninitialised, for a
    commit to be loaded into them. With `earlier`, the first weights are those of an earlier run, and else they are read
    from files or drawn. `model.attention: auto` is the first of `auto_attention` that all workers and the model have.

    Raises:
        UserError: on every worker, if there is no such model, or it cannot be trained with the job's settings.
    """
    if isinstance(config, ModelFolder):
        return _make_hf(
            config, train, world, first_weights=first_weights, earlier=earlier, auto_attention=auto_attention
        )
    assert isinstance(config, GptModel)  # a user's own loop builds its model itself
    if first_weights and earlier is None:
        return shard(build_model(config, train).to(world.device), world, train)
    with torch.device("meta"):  # weights that a commit replaces are neither drawn nor held whole
        model = shard(Gpt(config, activation_checkpointing=train.activation_checkpointing), world, train)
    model.to_empty(device=world.device)
    if first_weights and earlier is not None:
        world.agree(partial(earlier.fill, model))
    return model


def build_model(config: GptModel, train: Train) -> nn.Module:
    """The whole model on the CPU. Its weights depend only on the seed, so they are equal on every worker."""
    # `devices=[]`: by default, `fork_rng` saves the state of every GPU, and so starts CUDA on all of them.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(train.seed)
        return Gpt(config, activation_checkpointing=train.activation_checkpointing)


def _make_hf(
    folder: ModelFolder,
    train: Train,
    world: World,
    *,
    first_weights: bool,
    earlier: EarlierWeights | None,
    auto_attention: tuple[str, ...],
) -> nn.Module:
    """Build on the meta device, shard, then fill. A worker holds its shard and at most one more tensor or block."""
    if folder.model.attention == VARLEN:
        world.agree(lambda: varlen_attention.require(world.device))
    there = world.gather(computable_attention(auto_attention, world.device))
    choices = tuple(name for name in auto_attention if all(name in each for each in there))
    model = world.agree(
        lambda: build_on_meta(
            folder,
            activation_checkpointing=train.activation_checkpointing,
            auto_attention=choices,
            use_liger=kernels_of(train.kernels) == "liger",
        )
    )
    if model.chosen is not None:
        world.require_equal("what model.attention auto became", model.chosen.attention)
        model.chosen = _with_lacking(model.chosen, auto_attention, choices)
    # Before layers are packed: weights are drawn in plain layers.
    bare = bare_copy(model)
    if folder.model.frozen == "nf4":
        quantize(model.hf)
    shard(model, world, train)
    model.to_empty(device=world.device)
    world.agree(lambda: _fill(folder, model, bare, train.seed, first_weights=first_weights, earlier=earlier))
    return model


def _with_lacking(chosen: AttentionChosen, order: tuple[str, ...], there: tuple[str, ...]) -> AttentionChosen:
    """The choice, with those before it that some worker lacks."""
    before = order[: order.index(chosen.attention)]
    lacking = (f"{name}: not every worker has it" for name in before if name not in there)
    return replace(chosen, passed_over=(*lacking, *chosen.passed_over))


def _fill(
    folder: ModelFolder,
    model: HfCausal,
    bare: HfCausal,
    seed: int,
    *,
    first_weights: bool,
    earlier: EarlierWeights | None,
) -> None:
    config = folder.model
    if config.lora is not None and first_weights:
        draw_adapters(model, bare, seed)
    # A commit holds only what is trained. The rest is read or drawn again in every generation.
    needs_weights = first_weights or config.lora is not None
    has_buffers = any(True for _ in stored_buffers(bare))
    # An earlier run's commits hold no buffers either.
    if has_buffers or (needs_weights and earlier is None):
        if config.weights == "random":
            draw(model, bare, blocks_of(bare), seed)
        else:
            read(model, folder, buffers_only=not needs_weights or earlier is not None)
    if needs_weights and earlier is not None:
        earlier.fill(model)
    compute_buffers(model, bare)


def shard(model: nn.Module, world: World, train: Train) -> nn.Module:
    """Shard every block and then the rest, in place. Returns the model.

    Gradients are reduced in float32, after every round or once per step (`planner.train.exact.gradient_sums`).
    """
    # bf16 keeps 8 bits of a number, too few for a sum over many workers.
    precision = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if train.precision == "bf16" else None, reduce_dtype=torch.float32
    )
    for block in blocks_of(model).values():
        if train.compile:
            compile_block(block)
        # Blocks first: the outer call then takes only the parameters that no block has.
        fully_shard(block, mesh=world.mesh, mp_policy=precision)
    fully_shard(model, mesh=world.mesh, mp_policy=precision)
    let_fsdp_sum_gradients(model)
    if world.is_gloo:
        use_own_collectives(model)
    return model


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost blocks of a model, by name. FSDP gathers and computes each as one unit.

    A model of transformers names the classes of its blocks (`_no_split_modules`). In other models, the blocks are the
    elements of the `ModuleList` with the most parameters.

    Raises:
        TrainingFailed: the model has neither.
    """
    classes = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{outer}.") for outer in found)
        if type(module).__name__ in classes and not is_inside:
            found[name] = module
    return found or _largest_list(model)


def _largest_list(model: nn.Module) -> dict[str, nn.Module]:
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise TrainingFailed(
            f"{type(model).__name__} has no blocks to shard: neither _no_split_modules nor a ModuleList"
        )
    name, largest = max(lists, key=lambda item: sum(p.numel() for p in item[1].parameters()))
    return {f"{name}.{number}": block for number, block in enumerate(largest)}


def hf_shapes(folder: ModelFolder) -> ModelShapes:
    """The shapes of the parameters that a job with this model trains, adapters alone if it has any.

    The model is built as the workers build it, without its weights. That takes seconds, mostly to import transformers.

    Raises:
        UserError: the folder holds no model that can be trained with the job's settings.
    """
    model = build_for_shapes(folder)
    trained = Counter(tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad)
    return ModelShapes(trained=trained, num_blocks=len(blocks_of(model)))
