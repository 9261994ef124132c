"""How many workers a run should have, and when: pure decisions, without Ray."""
