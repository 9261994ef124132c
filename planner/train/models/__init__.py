"""Models as torch modules, and the first weights of those that transformers defines. `shard.py` cuts them for FSDP."""
