"""The job: frozen sections, checked once at birth. It knows no file format, no torch and no Ray."""

from planner.job.data import ChatData, Data, FeedbackData, JsonlData, OwnData, PairsData, TextData, TokensData
from planner.job.job import Job, batch_sizes
from planner.job.model import NAME, GptModel, HfModel, Lora, Model, OwnModel
from planner.job.objective import (
    DpoObjective,
    IpoObjective,
    KtoObjective,
    LmObjective,
    Objective,
    OwnObjective,
    ReferenceSource,
    SftObjective,
    SimpoObjective,
)
from planner.job.optimizer import SGD, AdamW, Optimizer, OwnOptimizer, RMSprop
from planner.job.run import Batch, Checkpoint, Eval, Schedule, Train, Workers

__all__ = [
    "NAME",
    "SGD",
    "AdamW",
    "Batch",
    "ChatData",
    "Checkpoint",
    "Data",
    "DpoObjective",
    "Eval",
    "FeedbackData",
    "GptModel",
    "HfModel",
    "IpoObjective",
    "Job",
    "JsonlData",
    "KtoObjective",
    "LmObjective",
    "Lora",
    "Model",
    "Objective",
    "Optimizer",
    "OwnData",
    "OwnModel",
    "OwnObjective",
    "OwnOptimizer",
    "PairsData",
    "RMSprop",
    "ReferenceSource",
    "Schedule",
    "SftObjective",
    "SimpoObjective",
    "TextData",
    "TokensData",
    "Train",
    "Workers",
    "batch_sizes",
]
