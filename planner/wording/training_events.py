"""Sentences for what the workers of a generation note: memory, commits, the data, the reference, the end."""
