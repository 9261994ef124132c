"""The job: frozen sections that are validated when they are made. Knows no file format, no torch and no Ray."""

from planner.job.after import After
from planner.job.data import Data, DataSpec
from planner.job.data_kinds.chat import ChatData
from planner.job.data_kinds.feedback import FeedbackData
from planner.job.data_kinds.jsonl import JsonlData
from planner.job.data_kinds.own import OwnCode
from planner.job.data_kinds.pairs import PairsData
from planner.job.data_kinds.text import TextData
from planner.job.data_kinds.tokens import TokensData
from planner.job.data_registry import data_spec_of
from planner.job.job import Job, batch_sizes, workers_of
from planner.job.model import GptModel, HfModel, Lora, Model, OwnModel
from planner.job.objective import Objective, ObjectiveSpec, ReferenceSource
from planner.job.objective_registry import spec_of
from planner.job.objectives.dpo import DpoObjective
from planner.job.objectives.ipo import IpoObjective
from planner.job.objectives.kto import KtoObjective
from planner.job.objectives.lm import LmObjective
from planner.job.objectives.sft import SftObjective
from planner.job.objectives.simpo import SimpoObjective
from planner.job.optimizer import SGD, AdamW, Optimizer, OwnOptimizer, RMSprop
from planner.job.rows import LoaderName, MixtureSet, Rows, RowsData, RowSource
from planner.job.settings import Schedule, Train, Workers

__all__ = [
    "SGD",
    "AdamW",
    "After",
    "ChatData",
    "Data",
    "DataSpec",
    "DpoObjective",
    "FeedbackData",
    "GptModel",
    "HfModel",
    "IpoObjective",
    "Job",
    "JsonlData",
    "KtoObjective",
    "LmObjective",
    "LoaderName",
    "Lora",
    "MixtureSet",
    "Model",
    "Objective",
    "ObjectiveSpec",
    "Optimizer",
    "OwnCode",
    "OwnModel",
    "OwnOptimizer",
    "PairsData",
    "RMSprop",
    "ReferenceSource",
    "RowSource",
    "Rows",
    "RowsData",
    "Schedule",
    "SftObjective",
    "SimpoObjective",
    "TextData",
    "TokensData",
    "Train",
    "Workers",
    "batch_sizes",
    "data_spec_of",
    "spec_of",
    "workers_of",
]
