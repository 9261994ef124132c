"""The version, in its one home: `pyproject.toml` reads it here."""

VERSION = "0.2.0"
