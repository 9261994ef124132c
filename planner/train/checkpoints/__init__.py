"""Checkpoints of a run: weights and optimizer state, written and read in shards."""
