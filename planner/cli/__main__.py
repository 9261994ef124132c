"""`python -m planner.cli` runs the console script `planner`."""

from planner.cli import main

main()
