"""Runs altered by somebody who knows every hash: chains and seals are made anew throughout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.store.records import NO_HEAD, chained

Alter = Callable[[dict[str, Any]], None]


def compact(value: object) -> str:
    """JSON as digests are taken of it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def reseal(file: Path, alter: Alter) -> str:
    """Alter a sealed file, and seal it anew; its digest."""
    value = json.loads(file.read_text())["value"]
    alter(value)
    digest = chained("", compact(value))
    file.write_text(json.dumps({"sha256": digest, "value": value}))
    return digest


def forged(run: Path, alter_record: Alter = lambda _: None, alter_manifest: Alter = lambda _: None) -> Path:
    """Alter records and manifests, those of held steps included, and whatever has a digest of them."""
    heads: dict[str, str] = {}  # as it was -> as it is now
    ends, digests = {"": NO_HEAD}, {"": ""}

    def seal_anew(name: str, folder: str = "manifests") -> str:
        def alter(value: dict[str, Any]) -> None:
            value["ledger_head"] = heads[value["ledger_head"]]
            alter_manifest(value)
            ends[name] = value["ledger_head"]

        digests[name] = reseal(run / folder / f"{name}.json", alter)
        return digests[name]

    for segment in sorted((run / "ledger").iterdir()):
        values = [json.loads(line) for line in segment.read_text().splitlines()]
        parent = values[0]["record"]["parent"]
        if values[0]["record"].get("parent_is_held"):
            seal_anew(parent, "held")
        values[0]["record"]["parent_sha256"] = digests[parent]
        head, lines = ends[parent], []
        for value in values:
            record = value["record"]
            if record["kind"] == "commit":
                record["sha256"] = seal_anew(record["name"])
            alter_record(record)
            head = heads[value["head"]] = chained(head, compact(record))
            lines.append(f'{{"head":"{head}","record":{compact(record)}}}\n')
        segment.write_text("".join(lines))
    return run
