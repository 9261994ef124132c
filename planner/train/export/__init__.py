"""Exports a commit's model as a folder that transformers or peft loads. The folder appears complete or not at all."""

from planner.train.export.commit import Exported, commit_at, export

__all__ = ["Exported", "commit_at", "export"]
