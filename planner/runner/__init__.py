"""The application layer that the commands and the Python API share, from a job to the end of its run.

The caller hands in a `display.Display`. The room knows no flags and no text layout, and writes to no terminal. Only
`driver_end`, a separate process, prints by itself, because it reports when the driver no longer can.
"""
