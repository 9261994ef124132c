"""Pydantic's errors about a job as plain text. Bounds and names come from the model's JSON Schema."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from planner.base.text import enumerated
from planner.errors import printable
from planner.files.messages import MAX_MISTAKES, KeyPath, Mistake, cut, dotted, show
from planner.job import Job

_Schema = Mapping[str, Any]

ELSEWHERE = {
    "batch_size": "batch.global",
    "bf16": "train.precision",
    "global_batch_size": "batch.global",
    "gradient_accumulation_steps": "batch.global (accumulation is derived from it)",
    "gradient_checkpointing": "train.activation_checkpointing",
    "learning_rate": "train.optimizer.lr",
    "lr_scheduler_type": "train.schedule.kind",
    "max_grad_norm": "train.clip_norm",
    "max_length": "model.context",
    "max_prompt_length": "data.max_prompt",
    "max_seq_length": "model.context",
    "max_steps": "train.steps",
    "model_name_or_path": "model.path",
    "num_train_epochs": "train.epochs",
    "output_dir": "checkpoint.path",
    "per_device_train_batch_size": "batch.max_micro",
    "train_batch_size": "batch.global",
    "warmup_ratio": "train.schedule.warmup",
    "warmup_steps": "train.schedule.warmup",
}
"""other systems' key -> our key"""


def translate(error: ValidationError, told: frozenset[KeyPath]) -> list[Mistake]:
    """One mistake per error of the model, except for values at or below a path in `told`."""
    root = Job.model_json_schema()
    mistakes: list[Mistake] = []
    refused: set[KeyPath] = set()
    for item in error.errors(include_url=False):
        path, node = _walk(root, item["loc"])
        if any(path[:length] in told for length in range(len(path) + 1)) or path in refused:
            continue
        if "anyOf" in node:
            # Pydantic reports each of the choices. One line names them all.
            refused.add(path)
        # A file of junk can hold 100,000 mistakes. Only the first ones are shown, the rest are counted.
        mistakes.append(_mistake(root, item) if len(mistakes) < MAX_MISTAKES else Mistake(text=""))
    return mistakes


def _mistake(root: _Schema, item: Mapping[str, Any]) -> Mistake:
    """One error of pydantic as a mistake. Its type matters only where the schema and the input do not say enough."""
    kind, value = item["type"], item["input"]
    path, node = _walk(root, item["loc"])
    if kind == "extra_forbidden":
        return Mistake(path=path, text=f"found an unknown key. {_nearest(root, item['loc'])}")
    if kind in {"value_error", "assertion_error"}:
        return Mistake(path=path, text=printable(str(item["ctx"]["error"])))
    if kind in {"union_tag_invalid", "union_tag_not_found"}:
        tag = node["discriminator"]["propertyName"]
        if not isinstance(value, Mapping):
            kinds = _one_of(node["discriminator"]["mapping"])
            return Mistake(path=path, text=f"found {show(value)}. Write a section with {tag}: {kinds}")
        path, value = (*path, tag), value.get(tag)
        found = show(value) if kind == "union_tag_invalid" else "nothing"
        return Mistake(path=path, text=f"found {found}. Write {_one_of(node['discriminator']['mapping'])}")
    if not node:
        return Mistake(path=path, text=f"found {show(value)}. {_unforeseen(item['msg'])}")
    found = "nothing" if kind == "missing" else show(value)
    return Mistake(path=path, text=f"found {found}. Write {_meant(node, value) or _expected(root, node)}")


def _unforeseen(message: str) -> str:
    """What to write, from the message of an error of a type that is not handled here."""
    return "Write what it should be: " + cut(re.sub(r"^\w+ should (be )?", "", message), at=200)


def _walk(root: _Schema, loc: Iterable[str | int]) -> tuple[KeyPath, _Schema]:
    """The path in the file and the schema there, from pydantic's location, which also names a union's kind."""
    path: KeyPath = ()
    node = root
    for part in loc:
        node = _only_section(root, node)
        if "anyOf" in node or part == "[key]":
            break  # what follows is pydantic's name for one of the choices, or for the key itself
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            node = _deref(root, {"$ref": kinds[part]})
        else:
            path, node = (*path, part), _deref(root, _child(node, part))
    return path, node


def _only_section(root: _Schema, node: _Schema) -> _Schema:
    """The section of a key that holds one kind of section or null. Other nodes are unchanged."""
    sections = [choice for choice in node.get("anyOf", ()) if choice.get("type") != "null"]
    return _deref(root, sections[0]) if len(sections) == 1 and "$ref" in sections[0] else node


def _child(node: _Schema, part: str | int) -> _Schema:
    if isinstance(part, int):
        items, others = node.get("prefixItems", []), node.get("items")
        return items[part] if part < len(items) else others if isinstance(others, dict) else {}
    more = node.get("additionalProperties")
    child: _Schema = node.get("properties", {}).get(part) or (more if isinstance(more, dict) else {})
    return child


def _deref(root: _Schema, node: _Schema) -> _Schema:
    name = node.get("$ref", "").rpartition("/")[2]
    return root["$defs"][name] if name else node


def _nearest(root: _Schema, loc: Sequence[str | int]) -> str:
    """Advice for an unknown key: similar keys of its section, or its name in other sections, or all known keys."""
    from difflib import get_close_matches  # imported only for a wrong file

    section, node = _walk(root, loc[:-1])
    key, known = str(loc[-1]), list(_only_section(root, node).get("properties", {}))
    if key in ELSEWHERE:
        return f"Did you mean {ELSEWHERE[key]}?"
    near = [(*section, name) for name in get_close_matches(key.lower(), known)]
    # Without the refused key itself, which another kind of this section may know.
    near = near or [path for path in _all_paths(root, root) if path[-1] == key and path != (*section, key)]
    if near:
        return f"Did you mean {enumerated(list(dict.fromkeys(map(dotted, near))), 'or')}?"
    return f"The keys of {dotted(section) or 'a job'} are {', '.join(known)}"


def _all_paths(root: _Schema, node: _Schema) -> Iterator[KeyPath]:
    for name, child in node.get("properties", {}).items():
        yield (name,)
        for section in _deref(root, child).get("oneOf", [child]):
            yield from ((name, *path) for path in _all_paths(root, _deref(root, section)))


def _expected(root: _Schema, node: _Schema) -> str:
    """What the schema accepts, as text, with its bounds and the field's description."""
    note = node.get("description", "")
    if node.get("type") == "object" or "oneOf" in node:
        return _expected_section(root, node)
    if "anyOf" in node:
        text = " or ".join(_expected(root, choice) for choice in node["anyOf"])
    elif "prefixItems" in node:
        items = [_expected(root, item) for item in node["prefixItems"]]
        text = f"a list of {len(items)}: [{', '.join(items)}]"
    elif "enum" in node or "const" in node:
        text = _one_of(node.get("enum") or [node["const"]])
    else:
        text = _expected_scalar(node)
    return f"{text} ({note})" if note else text


def _expected_section(root: _Schema, node: _Schema) -> str:
    if "discriminator" in node:
        union = node["discriminator"]
        return f"a section with {union['propertyName']}: {_one_of(union['mapping'])}"
    more = node.get("additionalProperties")
    if isinstance(more, dict):
        return f"a section of names, each with {_expected(root, more)}"
    if required := node.get("required"):
        return f"a section with at least the key{'s' * (len(required) > 1)} {', '.join(required)}"
    return f"a section with any of the keys {', '.join(node['properties'])}"


def _expected_scalar(node: _Schema) -> str:
    kind = node.get("type")
    if kind == "integer":
        return f"a whole number{_range(node)}"
    if kind == "number":
        return f"a number{_range(node)}"
    if kind == "string" and "examples" in node:
        return f"text such as {enumerated(node['examples'], 'or')}"
    if kind == "string" and "pattern" in node:
        return f"text that matches {node['pattern']}"
    if kind == "string":
        return "text that is not empty" if node.get("minLength") else "text"
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "another value")


def _range(node: _Schema) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    phrases = {
        "minimum": "of at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    limits = [f"{phrase} {node[bound]}" for bound, phrase in phrases.items() if bound in node]
    return f" {' and '.join(limits)}" if limits else ""


def _meant(node: _Schema, value: Any) -> str:
    """The whole number that a value such as 32.0 stands for, if the field accepts it, else empty."""
    for choice in node.get("anyOf", [node]):
        if choice.get("type") == "integer" and isinstance(value, float) and value.is_integer():
            low, high = choice.get("minimum", -math.inf), choice.get("maximum", math.inf)
            if low <= value <= high and value < choice.get("exclusiveMaximum", math.inf):
                return f"{int(value)}"
    return ""


def _one_of(values: Iterable[Any]) -> str:
    names = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]  # as in YAML
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"
