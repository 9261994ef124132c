"""The page of `planner report`: HTML from values. Every text of a run is escaped."""
