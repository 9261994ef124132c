"""Trackers: sends the curves of a run to Weights & Biases, TensorBoard, MLflow, trackio or a file.

Rows come from the ledger and never from the training path. `python -m planner.tracking` is the child process of the
driver that sends them, and `planner track` sends what is missing.
"""
