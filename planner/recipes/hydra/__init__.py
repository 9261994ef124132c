"""Composes a configuration as Hydra 1.3 does, from a folder of YAML, defaults lists and overrides.

    options, grammar -> files, defaults -> tree, apply -> interpolation -> compose

The package knows no system. It refuses what Hydra refuses, and what it cannot compose with certainty.
"""
