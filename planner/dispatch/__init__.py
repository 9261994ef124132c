"""Runs plans on Ray Train. The room knows nothing of tensors, files or flags."""
