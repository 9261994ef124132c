"""torchtune: its keys, its recipes, what they do at each GPU count, and how planner makes a job of a configuration."""
