"""A job sent to a cluster, which runs it without this machine."""
