"""Whether planner can train the model in a folder, by its files alone.

The driver checks it before it starts anything, and every worker before it builds a model.
"""

import importlib.util
import math
from collections.abc import Mapping
from typing import Any

from planner.base.text import how_to_install
from planner.data.model_folder import CONFIG, ModelFolder
from planner.errors import UserError

# Building a layer takes milliseconds even without memory. The deepest model known has 160.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 4096
_MOST_POSITIONS = 2**40
# A token that is read and one to predict (`model.context` of a job).
_LEAST_CONTEXT = 2


def require_extra(*, lora: bool) -> None:
    """Check that the libraries of the `hf` extra are installed.

    Raises:
        UserError: a library is missing.
    """
    names = ("transformers", *(("peft",) if lora else ()))
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise UserError(f"model.kind hf needs {' and '.join(missing)}: {how_to_install('hf')}")


def require_fit(folder: ModelFolder) -> None:
    """Check the libraries, and the files, configuration and weights in a model's folder.

    Raises:
        UserError: the model cannot be trained as the job says.
    """
    require_extra(lora=folder.model.lora is not None)
    folder.require_readable()
    _require_causal(folder)
    _require_layers(folder)
    _require_context(folder)
    if folder.model.weights == "pretrained":
        _ = folder.tensors  # raises an error if there are none


def _require_layers(folder: ModelFolder) -> None:
    for key in _LAYERS:
        # `not <=`: NaN is no number of layers either.
        if isinstance(number := folder.config.get(key), int | float) and not number <= _MOST_LAYERS:
            raise UserError(f"{folder.path / CONFIG}: {key} is above {_MOST_LAYERS}, and no model has so many layers")


def _require_causal(folder: ModelFolder) -> None:
    names, where = folder.config.get("architectures") or [], folder.path / CONFIG
    if not isinstance(names, list):
        raise UserError(f"{where}: architectures is not a list of names. Correct it")
    if names and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        raise UserError(f"{where}: {', '.join(map(str, names))} is not a causal language model with a head")
    if "quantization_config" in folder.config:
        raise UserError(f"{where}: its weights are quantized and cannot be trained. Use the original ones")


def _require_context(folder: ModelFolder) -> None:
    """Check that the model knows every position of a sample.

    Raises:
        UserError: the job's context is longer, or would make a sample's frequencies depend on its micro-batch.
    """
    config, where = folder.config, folder.path / CONFIG
    places = [_positive(folder, config, key) for key in ("max_position_embeddings", "n_positions")]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        return
    factor = _positive(folder, rope, "factor") or 1
    originals = [_positive(folder, its, "original_max_position_embeddings") for its in (rope, config)]
    if not (known := [math.floor(place) for place in places if place]):
        return
    original = math.floor(next(filter(None, originals), 0))
    longest = max(known[0], math.floor(factor * (original or known[0])))
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("dynamic", "longrope"):
        # Their frequencies depend on the longest sample of a micro-batch, so on which samples share it.
        longest = original or known[0]
    if longest < _LEAST_CONTEXT:
        raise UserError(f"{where}: it knows {longest} positions, too few for a sample. Copy the file again")
    if folder.model.context > longest:
        raise UserError(
            f"model.context is {folder.model.context}, and {where} knows {longest} positions"
            f"{f' at which rope {kind!r} is the same for all samples' if kind in ('dynamic', 'longrope') else ''}. "
            f"Write model.context: {longest} or less"
        )


def _positive(folder: ModelFolder, values: Mapping[str, Any], key: str) -> float | None:
    """The number at `key`, None if there is none.

    Raises:
        UserError: the value is not a finite number above 0. Python's JSON also reads NaN and 1e999.
    """
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST_POSITIONS:
        raise UserError(f"{folder.path / CONFIG}: {key} is {repr(value)[:40]}. Write a number above 0")
    return value
