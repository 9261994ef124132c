"""The DPO repository (eric-mitchell/direct-preference-optimization): its keys, and what it does with a batch."""
