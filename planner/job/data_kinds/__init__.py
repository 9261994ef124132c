"""Planner's own kinds of data, one file each: the section of the job and its `DataSpec`. No torch.

To add a kind, write its file and add it here. docs/extending.md has an example.
"""

from planner.job.data_kinds.chat import CHAT
from planner.job.data_kinds.feedback import FEEDBACK
from planner.job.data_kinds.jsonl import JSONL
from planner.job.data_kinds.own import OWN
from planner.job.data_kinds.pairs import PAIRS
from planner.job.data_kinds.text import TEXT
from planner.job.data_kinds.tokens import TOKENS

OURS = {spec.kind: spec for spec in (TEXT, JSONL, TOKENS, CHAT, PAIRS, FEEDBACK, OWN)}
"""kind -> spec, in the order in which messages list them"""
