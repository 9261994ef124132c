"""`python -m planner.cli`: the same as the console script."""

from planner.cli import main

main()
