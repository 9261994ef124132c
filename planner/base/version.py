"""The version of planner. `pyproject.toml` reads it from here."""

VERSION = "0.1.0"
