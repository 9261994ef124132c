"""Models: plain torch modules that know nothing of sharding. Each has `blocks`, the units that FSDP shards."""
