"""Decides how many workers a run should have, and when. Pure functions, without Ray."""
