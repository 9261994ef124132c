"""Sums that do not depend on who adds them, and the settings that make torch repeat itself."""
