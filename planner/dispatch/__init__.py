"""Runs a job on Ray Train. This room does not know tensors, file formats or flags."""
