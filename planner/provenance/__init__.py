"""What makes a run the same run, and what its record proves."""
