"""A cluster's node groups as its file describes them, and the worker counts that they can hold."""
