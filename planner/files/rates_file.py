"""A rates file: what `planner fit` writes and `planner plan --rates` reads. A person may write or change one, too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from planner.base.format_versions import STORED, refusal
from planner.errors import PlanError, UserError
from planner.files.cluster_section import CheckedMapping
from planner.files.loader import BoundedLoader, Unreadable, YamlMistake, document, read_text
from planner.files.messages import Mistake, cut, listed
from planner.plan import BatchSizes
from planner.plan.factory import MAX_MICRO, MAX_TOKENS, MAX_WORKERS
from planner.plan.lowered_caps import Caps
from planner.plan.rates import Rates, Setting, SizeTimes
from planner.plan.step_time import NOTHING, StepModel, Term, Traffic, compute_by_flops

_SOURCES = ("measured", "fitted", "data sheet", "assumed")
_GIGA = 1e9
# A shorter time is rounding. Its bandwidth could be beyond all numbers.
_LEAST_S_PER_BYTE = 1e-24
_LEAST_GBPS = 1e-18
_AGAIN = "Correct it, or write the file again: planner fit RUN"
_TERM = "Write a section with value and source, such as {value: 0.01, source: measured}"
_NUMBER = "Write a finite number of 0 or more"
_COMMENT = """\
# Made by `planner fit`. `planner plan JOB --rates` reads it. docs/guides/time-and-money.md explains each number.
# source: measured, fitted, data sheet or assumed. A bandwidth of null moves bytes in no time.
"""


# -- writing


def rates_text(rates: Rates) -> str:
    """The content of a rates file."""
    model, traffic, sizes = rates.model, rates.model.traffic, rates.sizes
    values = {
        "format": STORED["rates"],
        "run": rates.run,
        "job": rates.job,
        "settings": dict(rates.settings),
        "batch": {
            "global": sizes.global_batch,
            "max_micro": sizes.max_micro,
            "max_tokens": sizes.max_tokens,
            "attention_at": sizes.attention_at,
            "equality": sizes.equality,
        },
        "sample_tokens": None if rates.sample_tokens is None else _term(rates.sample_tokens),
        "epoch_samples": rates.epoch_samples,
        "terms": {
            "sample_s": _term(model.sample_s),
            "round_s": _term(model.round_s),
            "fixed_s": _term(model.fixed_s),
            "in_node_gbps": _bandwidth(model.in_node_s_per_byte),
            "between_nodes_gbps": _bandwidth(model.between_s_per_byte),
            "commit_s": _term(model.commit_s),
        },
        "traffic": {
            "gather_bytes": traffic.gather_bytes,
            "reduce_bytes": traffic.reduce_bytes,
            "reduces_every_round": traffic.reduces_every_round,
        },
        "node_workers": model.node_workers,
        "measured": [
            {
                "world_size": each.world_size,
                "steps": each.steps,
                "seconds": each.seconds,
                "waited_s": each.waited_s,
                "max_micro": each.caps.max_micro,
                "max_tokens": each.caps.max_tokens,
            }
            for each in rates.measured
        ],
    }
    return _COMMENT + yaml.safe_dump(values, sort_keys=False, width=110, allow_unicode=True)


def _term(term: Term) -> dict[str, Any]:
    return {"value": term.value, "source": term.source, "because": term.because}


def _bandwidth(s_per_byte: Term) -> dict[str, Any]:
    is_known = s_per_byte.value > _LEAST_S_PER_BYTE
    return _term(s_per_byte) | {"value": 1 / (s_per_byte.value * _GIGA) if is_known else None}


# -- reading


def read_rates(path: str | Path) -> Rates:
    """Read a rates file.

    Raises:
        UserError: the file cannot be read, is no rates file, or is wrong. The message has one line per mistake.
    """
    source, mistakes = str(path), list[Mistake]()
    try:
        root = CheckedMapping(values=_mapping(read_text(path, "rates file")), mistakes=mistakes)
    except Unreadable as error:
        raise UserError(listed(source, [Mistake(text=str(error))])) from None
    rates = _rates(root)
    if mistakes or rates is None:
        raise UserError(listed(source, mistakes))
    return rates


def _mapping(text: str) -> dict[Any, Any]:
    try:
        values = document(text, BoundedLoader)
    except YamlMistake as error:
        where = f"line {error.line}, column {error.column}: " if error.line else ""
        raise Unreadable(f"{where}found a YAML mistake ({cut(error.problem, 200)}). {_AGAIN}") from None
    if not isinstance(values, dict) or "terms" not in values:
        raise Unreadable("found no rates (no section terms). Write the path of a file that planner fit RUN wrote")
    if why := refusal(values.get("format"), "rates"):
        raise Unreadable(f"{why}. Write it again: planner fit RUN")
    return values


def _rates(root: CheckedMapping) -> Rates | None:
    model, found = _model(root), _sizes(root)
    sizes = found or BatchSizes(global_batch=1, max_micro=1)
    tokens = None if root.values.get("sample_tokens") is None else _read_term(root, "sample_tokens")
    rates = Rates(
        run=_text(root, "run"),
        job=_text(root, "job"),
        settings=_settings(root.optional("settings")),
        sizes=sizes,
        model=model if tokens is None else replace(model, sample_tokens=tokens.value),
        measured=_measured(root, Caps.of(sizes)),
        sample_tokens=tokens,
        epoch_samples=root.whole("epoch_samples", 0),
    )
    return None if found is None else rates


def _text(root: CheckedMapping, key: str) -> str:
    value = root.values.get(key, "")
    if isinstance(value, str):
        return value
    root.refuse(key, "Write text")
    return ""


def _settings(section: CheckedMapping) -> dict[str, Setting]:
    for key, value in section.values.items():
        if not isinstance(key, str) or not (value is None or isinstance(value, str | int | float | bool)):
            section.refuse(key, f"Write a text, a number, true, false or null. {_AGAIN}")
    return dict(section.values)


def _sizes(root: CheckedMapping) -> BatchSizes | None:
    batch = root.section("batch", f"Write the batch of the measured run. {_AGAIN}")
    fix = f"Write the batch.{{}} of the measured run. {_AGAIN}"
    if not batch.values:
        return None
    numbers = {}
    for key in ("global", "max_micro", "max_tokens", "attention_at"):
        value = batch.values.get(key)
        is_missing = value is None and key in ("global", "max_micro")
        if is_missing or not (value is None or (isinstance(value, int) and not isinstance(value, bool))):
            batch.refuse(key, fix.format(key))
            return None
        numbers[key] = value
    equality = batch.values.get("equality", "balanced")
    if equality not in ("balanced", "bitwise"):
        batch.refuse("equality", "Write balanced or bitwise")
        return None
    try:
        return BatchSizes(
            global_batch=numbers["global"] or 0,
            max_micro=numbers["max_micro"] or 0,
            max_tokens=numbers["max_tokens"],
            attention_at=numbers["attention_at"],
            equality=equality,
        )
    except PlanError as error:
        batch.mistakes.append(Mistake(text=f"{error}. {_AGAIN}"))
        return None


def _model(root: CheckedMapping) -> StepModel:
    terms, traffic = root.section("terms", f"Write the terms of a step. {_AGAIN}"), root.optional("traffic")
    is_every = traffic.values.get("reduces_every_round", False)
    if not isinstance(is_every, bool):
        traffic.refuse("reduces_every_round", "Write true or false")
    in_node = _read_bandwidth(terms, "in_node_gbps")
    return StepModel(
        sample_s=_compute(terms),
        round_s=_read_term(terms, "round_s", NOTHING),
        fixed_s=_read_term(terms, "fixed_s", NOTHING),
        in_node_s_per_byte=in_node,
        between_s_per_byte=_read_bandwidth(terms, "between_nodes_gbps", in_node),
        commit_s=_read_term(terms, "commit_s", NOTHING),
        traffic=Traffic(
            gather_bytes=traffic.number("gather_bytes", _NUMBER, Traffic.gather_bytes),
            reduce_bytes=traffic.number("reduce_bytes", _NUMBER, Traffic.reduce_bytes),
            reduces_every_round=is_every is True,
        ),
        node_workers=_node_workers(root),
    )


def _compute(terms: CheckedMapping) -> Term:
    """`sample_s`, or `sample_flops` over `flops_per_s`, for whom a data sheet is all there is."""
    if "flops_per_s" not in terms.values:
        term = _read_term(terms, "sample_s")
        if not term.value and isinstance(terms.values.get("sample_s"), dict):
            _fixed_alone(terms)
        return term
    flops, rate = _read_term(terms, "sample_flops"), _read_term(terms, "flops_per_s")
    if flops.value and rate.value:
        weaker = max(flops.source, rate.source, key=_SOURCES.index)
        return replace(compute_by_flops(flops.value, rate), source=weaker)
    if not terms.mistakes:
        terms.refuse("flops_per_s", "Write sample_flops and flops_per_s above 0")
    return flops


def _fixed_alone(terms: CheckedMapping) -> None:
    """Refuse terms that are all 0: a step would take no time."""
    others = (_read_term(terms, key, NOTHING) for key in ("round_s", "fixed_s"))
    if not any(other.value for other in others):
        terms.refuse("sample_s", f"A step would take no time. {_AGAIN}")


def _read_term(section: CheckedMapping, key: str, default: Term | None = None) -> Term:
    if default is not None and section.values.get(key) is None:
        return default
    term = section.section(key, _TERM)
    value = term.number("value", _NUMBER) if term.values else 0.0
    return Term(value=value, source=_source(term), because=_text(term, "because"))


def _read_bandwidth(section: CheckedMapping, key: str, default: Term = NOTHING) -> Term:
    """A bandwidth in 10^9 bytes per second as seconds per byte. null, and no section, is `default`."""
    if section.values.get(key) is None:
        return default
    term = section.section(key, _TERM)
    if term.values.get("value") is None:
        return default
    gbps = term.number("value", "Write a number above 0, or null", least=_LEAST_GBPS)
    return Term(value=1 / (gbps * _GIGA), source=_source(term), because=_text(term, "because"))


def _source(term: CheckedMapping) -> Any:
    source = term.values.get("source", "assumed")
    if source in _SOURCES:
        return source
    term.refuse("source", f"Write one of {', '.join(_SOURCES)}")
    return "assumed"


def _node_workers(root: CheckedMapping) -> int | None:
    if root.values.get("node_workers") is None:
        return None
    return root.whole("node_workers") or None


def _measured(root: CheckedMapping, caps: Caps) -> tuple[SizeTimes, ...]:
    if not root.values.get("measured"):
        return ()
    found: dict[int, SizeTimes] = {}
    for each in root.sections("measured", f"Write a list of sections, or []. {_AGAIN}"):
        world_size = each.whole("world_size")
        if not 1 <= world_size <= MAX_WORKERS or world_size in found:
            each.refuse("world_size", f"Write a number from 1 to {MAX_WORKERS}, each once")
        found[world_size] = SizeTimes(
            world_size=world_size,
            steps=each.whole("steps", 0),
            seconds=each.number("seconds", "Write a number above 0", least=1e-12),
            waited_s=each.number("waited_s", _NUMBER, 0.0),
            caps=_caps(each, caps),
        )
    return tuple(found[size] for size in sorted(found))


def _caps(section: CheckedMapping, default: Caps) -> Caps:
    """The caps of one world size. Those of `batch`, if the section has none."""
    max_micro = _cap(section, "max_micro", MAX_MICRO, default.max_micro)
    if default.max_tokens is not None:
        return Caps(max_micro=max_micro, max_tokens=_cap(section, "max_tokens", MAX_TOKENS, default.max_tokens))
    if section.values.get("max_tokens") is not None:
        section.refuse("max_tokens", "Remove it, or write batch.max_tokens, too")
    return Caps(max_micro=max_micro)


def _cap(section: CheckedMapping, key: str, most: int, default: int) -> int:
    found = section.whole(key, default)
    if 1 <= found <= most:
        return found
    section.refuse(key, f"Write a number from 1 to {most}")
    return default
