"""The application layer: what the commands, the demo and Python callers do. It writes to no terminal."""
