"""The seeded order of the data: position -> row. Pure. It does not know files, workers, world sizes or clocks."""
