"""A Ray cluster of several logical nodes on this machine."""
