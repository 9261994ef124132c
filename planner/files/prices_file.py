"""A price list of the user's: a SkyPilot catalog (CSV), or a short YAML file. Nothing is fetched."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from planner.errors import UserError
from planner.files.cluster_section import CheckedMapping
from planner.files.loader import BoundedLoader, Unreadable, YamlMistake, document, read_text
from planner.files.messages import Mistake, cut, listed, quote
from planner.plan.prices import Offer, is_same_gpu

_COLUMNS = ("AcceleratorName", "AcceleratorCount", "Price")
_MORE_COLUMNS = ("InstanceType", "SpotPrice", "Region", "AvailabilityZone")
# Some editors and spreadsheets write it at the start of UTF-8 files.
_BYTE_ORDER_MARK = "\ufeff"
_SUCH_AS = "Write prices such as gpus: {H100: {on_demand: 3.9, spot: 1.5}}, or the path of a SkyPilot catalog (CSV)"
# Of dollars and of GPUs.
_MOST = 1e9
# The catalogs of the large clouds have several megabytes.
_MOST_BYTES = 2**26


def read_prices(path: str | Path) -> tuple[Offer, ...]:
    """The offers of a price list. Rows of a catalog without a GPU are left out.

    Raises:
        UserError: the file cannot be read, or is wrong. The message has one line per mistake.
    """
    mistakes: list[Mistake] = []
    try:
        text = read_text(path, "price list", _MOST_BYTES).removeprefix(_BYTE_ORDER_MARK)
        is_table = Path(path).suffix.lower() == ".csv" or text.partition("\n")[0].startswith("InstanceType,")
        offers = tuple(_catalog(text, mistakes) if is_table else _list(text, mistakes))
    except Unreadable as error:
        raise UserError(listed(str(path), [Mistake(text=str(error))])) from None
    if not (offers or mistakes):
        mistakes.append(Mistake(text=f"found no price of a GPU. {_SUCH_AS}"))
    if mistakes:
        raise UserError(listed(str(path), mistakes))
    return offers


# -- SkyPilot's catalogs, such as https://github.com/skypilot-org/skypilot-catalog/blob/master/catalogs/v8/aws/vms.csv


def _catalog(text: str, mistakes: list[Mistake]) -> Iterator[Offer]:
    rows = csv.DictReader(io.StringIO(text))
    try:
        if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
            raise Unreadable(f"found a table without the column {missing[0]}. {_SUCH_AS}")
        names = list(rows.fieldnames or ())
        if twice := [name for name in (*_COLUMNS, *_MORE_COLUMNS) if names.count(name) > 1]:
            raise Unreadable(f"found the column {twice[0]} {names.count(twice[0])} times. Keep one of them")
        for row in rows:
            if (row["AcceleratorName"] or "").strip():
                yield from _offer(row, f"line {rows.line_num}", mistakes)
    except csv.Error as error:
        raise Unreadable(f"line {rows.line_num}: found what is no table ({error}). {_SUCH_AS}") from None


def _offer(row: dict[str, str | None], line: str, mistakes: list[Mistake]) -> Iterator[Offer]:
    """The offer of a row: none if it has no price, or if its number of GPUs is no whole one (parts of a GPU)."""
    gpus = _number(row, "AcceleratorCount", line, mistakes)
    on_demand, spot = (_number(row, name, line, mistakes) for name in ("Price", "SpotPrice"))
    if gpus is None or gpus < 1 or gpus != int(gpus) or (on_demand is None and spot is None):
        return
    place = row.get("AvailabilityZone") or row.get("Region") or ""
    name = row.get("InstanceType") or ""
    gpu = (row["AcceleratorName"] or "").strip()
    yield Offer(gpu=gpu, gpus=int(gpus), on_demand=on_demand, spot=spot, name=cut(name), place=cut(place))


def _number(row: dict[str, str | None], column: str, line: str, mistakes: list[Mistake]) -> float | None:
    """The number in a column. None if it is empty or there is no such column."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 <= value <= _MOST:
        return value
    mistakes.append(Mistake(text=f"{line}, {column}: found {quote(text)}. Write a number from 0 to 10^9, or nothing"))
    return None


# -- our YAML


class _EachKeyOnceLoader(BoundedLoader):
    """Refuses a key that is there twice. PyYAML takes the last one, and a price would be lost without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping. The keys of merged ones (`<<`) may be there again, as YAML has it."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    problem = f"the key {key.value} twice, also on line {lines[key.value]}"
                    raise yaml.composer.ComposerError(problem=problem, problem_mark=key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return node


def _list(text: str, mistakes: list[Mistake]) -> Iterator[Offer]:
    try:
        values = document(text, _EachKeyOnceLoader)
    except YamlMistake as error:
        where = f"line {error.line}, column {error.column}: " if error.line else ""
        raise Unreadable(f"{where}found a YAML mistake ({cut(error.problem, 200)}). {_SUCH_AS}") from None
    if not isinstance(values, dict) or not isinstance(values.get("gpus"), dict):
        raise Unreadable(f"found no section gpus. {_SUCH_AS}")
    root = CheckedMapping(values=values, mistakes=mistakes)
    for key in values:
        if key != "gpus":
            root.refuse(key, "There is no such key. Write gpus alone")
    before: list[str] = []
    for gpu, section in root.optional("gpus").named():
        if not gpu.strip():
            mistakes.append(Mistake(path=("gpus",), text="found a GPU without a name. Write one, such as H100"))
        elif same := next((name for name in before if is_same_gpu(name, gpu)), ""):
            mistakes.append(Mistake(path=("gpus", gpu), text=f"found the same GPU as {quote(same)}. Keep one of them"))
        before.append(gpu)
        yield _priced(gpu, section)


def _priced(gpu: str, section: CheckedMapping) -> Offer:
    known = ("on_demand", "spot", "gpus_per_node")
    for key in section.values:
        if key not in known:
            section.refuse(key, f"There is no such key. Write {', '.join(known)}")
    fix = "Write dollars per hour and GPU, 0 or more, as on_demand, spot or both"
    prices = {key: section.number(key, fix) for key in ("on_demand", "spot") if section.values.get(key) is not None}
    if not prices:
        section.refuse("on_demand", fix)
    gpus = section.whole("gpus_per_node", 1)
    if not gpus:
        section.refuse("gpus_per_node", "Write a number of GPUs, 1 or more")
    return Offer(
        gpu=gpu,
        gpus=gpus or 1,
        on_demand=prices["on_demand"] * gpus if "on_demand" in prices else None,
        spot=prices["spot"] * gpus if "spot" in prices else None,
    )
