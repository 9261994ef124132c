"""Runs plans on Ray: the only room that imports ray; it knows nothing of tensors, files or flags."""
