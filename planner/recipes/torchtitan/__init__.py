"""torchtitan: planner writes jobs and batches as its options, and reads none."""
