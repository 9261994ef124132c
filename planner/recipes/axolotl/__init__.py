"""axolotl: its keys, and how planner makes a job of them. transformers' Trainer trains its recipes."""
