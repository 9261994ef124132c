"""A cluster as its file describes it, and the worker counts that it can have."""
