"""What a Hugging Face model trains, from the headers of its safetensors files: without torch and transformers.

Only for families whose files hold exactly the parameters of the model, so that the answer is exact.
"""

import re
from collections import Counter
from collections.abc import Mapping

from planner.data.model_folder import ModelFolder
from planner.job import Lora
from planner.plan.commit_size import ModelShapes, Shape

# model_type -> whether transformers (5.23) shares the embedding with the head if the configuration does not say.
_FAMILIES = {"llama": False, "mistral": False, "qwen2": False, "qwen3": False, "smollm3": True}
_HEAD = "lm_head.weight"
_OUTSIDE = {"model.embed_tokens.weight", "model.norm.weight", _HEAD}
_IN_BLOCK = re.compile(r"model\.layers\.(\d+)\.(self_attn|mlp|\w+_layernorm)(\.\w+)?\.(weight|bias)")


def stored_shapes(folder: ModelFolder) -> ModelShapes | None:
    """The shapes of the parameters that a job with this model trains, adapters alone if it has any.

    None if the files do not tell: the weights are random, the family has another layout, or a tensor is no parameter.

    Raises:
        UserError: the configuration or a file cannot be read.
    """
    family, model = folder.config["model_type"], folder.model
    if family not in _FAMILIES or model.weights != "pretrained":
        return None
    shapes = {name: tensor.shape for name, tensor in folder.tensors.items()}
    if folder.config.get("tie_word_embeddings", _FAMILIES[family]):
        shapes.pop(_HEAD, None)
    elif _HEAD not in shapes:
        return None
    blocks = {found[1] for name in shapes if (found := _IN_BLOCK.fullmatch(name))}
    if not all(shapes.values()) or not all(name in _OUTSIDE or _IN_BLOCK.fullmatch(name) for name in shapes):
        return None
    trained = Counter(shapes.values()) if model.lora is None else _adapters(shapes, model.lora)
    return None if trained is None else ModelShapes(trained=trained, num_blocks=len(blocks))


def _adapters(shapes: Mapping[str, Shape], lora: Lora) -> Counter[Shape] | None:
    """The shapes of the adapters. None if a target is not one of the blocks' linear layers.

    An adapter of a layer `(out, in)` has the factors `(rank, in)` and `(out, rank)` (Hu et al. 2021, section 4.1).
    """
    layers = {
        name.removesuffix(".weight"): shape
        for name, shape in shapes.items()
        if _IN_BLOCK.fullmatch(name) and len(shape) == 2
    }
    for target in lora.targets or ():
        if not any(_is_target(name, target) for name in layers):
            return None
    found: Counter[Shape] = Counter()
    for name, (num_out, num_in) in layers.items():
        if lora.targets is None or any(_is_target(name, target) for target in lora.targets):
            found.update([(lora.rank, num_in), (num_out, lora.rank)])
    return found


def _is_target(name: str, target: str) -> bool:
    return f".{name}".endswith(f".{target}")
