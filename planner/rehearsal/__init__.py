"""A job trained through a given history of world sizes, by local processes or on Ray."""
