"""What makes a run the same training run, and what its ledger proves."""
