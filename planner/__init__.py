"""Keeps a training recipe's global batch exact on whatever GPUs Ray grants."""

__version__ = "0.1.0"
