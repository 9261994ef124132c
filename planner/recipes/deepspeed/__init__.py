"""DeepSpeed: rows of the keys of its JSON, and what it does with batch sizes."""
