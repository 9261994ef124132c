"""Memory on each node that outlives worker processes: it holds copies of shards, from which a group can resume."""
