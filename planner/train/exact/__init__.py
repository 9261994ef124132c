"""Gradient sums and norms with the same bits for every split, and the settings that make torch deterministic."""
