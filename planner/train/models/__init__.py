"""Models as torch modules, and first weights for those of transformers. `shard.py` shards them."""
