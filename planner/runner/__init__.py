"""The application layer: what the commands, the demo and Python callers do, from a job to the end of its run.

What is shown is handed in (`display.Display`). The room knows no flags and no layout of text, and writes to no
terminal. `driver_end` alone is a process of its own, which speaks when the driver no longer can.
"""
