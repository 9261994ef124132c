"""Token files with an odd header, body or table of rows, in which every digest is right."""

import json
import random
from hashlib import sha256
from typing import Any

from fuzz_values import change_bytes, change_value

from planner.data.tokens import _BLOCK_BYTES, _MAGIC, _NUM_BLOCKS, HEADER_BYTES

Dice = random.Random


def data_digest(content: bytes, job: Any) -> str:
    """What a run calls its data, if that is a token file of this content. Empty if the header cannot be read."""
    try:
        head = json.loads(content[len(_MAGIC) + 64 : HEADER_BYTES])
        context, held_out = job["model"]["context"], job["eval"]["samples"]
        rows = head["num_rows"] if head["kind"] == "rows" else -(-(head["num_tokens"] - 1) // context)
        facts = ("tokens", *(head[key] for key in ("kind", "dtype", "num_tokens", "num_rows", "sha256")), context)
        fingerprint = sha256(repr(facts).encode()).hexdigest()
        return sha256(f"{fingerprint} {rows} rows, {held_out} held out".encode()).hexdigest()
    except (ValueError, LookupError, TypeError):
        return ""


def change_tokens(content: bytes, dice: Dice) -> bytes:
    """A token file with another header, body or table of rows, whose seal and digests are right."""
    head = json.loads(content[len(_MAGIC) + 64 : HEADER_BYTES])
    body = content[HEADER_BYTES:]
    kind = dice.random()
    if kind < 0.3:
        head = change_value(head, dice)
    elif kind < 0.5:
        body = change_bytes(body, dice)
    elif isinstance(head, dict) and head.get("kind") == "rows" and head["num_rows"]:
        body = _change_starts(head, body, dice)
    return sealed_tokens(head, body)


def _change_starts(head: dict[str, Any], body: bytes, dice: Dice) -> bytes:
    """Where rows begin: other numbers, rows that overlap, or another number of them."""
    table_at = -(-head["num_tokens"] // 8) * 8
    starts = [int.from_bytes(body[at : at + 8], "little") for at in range(table_at, len(body), 8)]
    for _ in range(dice.choice([1, 1, 3])):
        place, other = dice.randrange(len(starts)), dice.randrange(len(starts))
        odd = [0, 1, starts[other], head["num_tokens"], head["num_tokens"] + 1, 2**31, 2**63, 2**63 - 1, 2**64 - 1]
        starts[place] = dice.choice(odd)
    if dice.random() < 0.2:
        starts = dice.choice([starts[:-1], starts[:1], starts * 2, sorted(starts)])
        head["num_rows"] = len(starts) - 1
    return body[:table_at] + b"".join(start.to_bytes(8, "little") for start in starts)


def sealed_tokens(head: Any, body: bytes) -> bytes:
    """A token file of this header and body, with the digests of the body and the header's seal."""
    last = max(len(body) - _BLOCK_BYTES, 0)
    blocks = (
        body[start : start + _BLOCK_BYTES] for start in (last * n // (_NUM_BLOCKS - 1) for n in range(_NUM_BLOCKS))
    )
    if isinstance(head, dict):
        if isinstance(head.get("sha256"), str):
            head["sha256"] = sha256(body).hexdigest()
        if isinstance(head.get("blocks_sha256"), str):
            head["blocks_sha256"] = sha256(b"".join(blocks)).hexdigest()
    text = json.dumps(head, sort_keys=True, default=str).encode()
    rest = b" " + text.ljust(HEADER_BYTES - len(_MAGIC) - 64 - 2) + b"\n"
    return _MAGIC + sha256(rest).hexdigest().encode() + rest + body
