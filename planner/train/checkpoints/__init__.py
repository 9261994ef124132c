"""What a run keeps of its tensors, written and read in shards."""
