"""Planner's own objectives, one file each: the section of the job and its `ObjectiveSpec`. No torch.

To add an objective, write its file and add it here. docs/extending.md has an example.
"""

from planner.job.objectives.dpo import DPO
from planner.job.objectives.ipo import IPO
from planner.job.objectives.kto import KTO
from planner.job.objectives.lm import LM
from planner.job.objectives.orpo import ORPO
from planner.job.objectives.own import OWN
from planner.job.objectives.sft import SFT
from planner.job.objectives.simpo import SIMPO

OURS = {spec.kind: spec for spec in (LM, SFT, DPO, IPO, SIMPO, ORPO, KTO, OWN)}
"""kind -> spec, in the order in which messages list them"""
