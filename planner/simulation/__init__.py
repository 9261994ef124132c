"""What a job does on a spot market: a trace of nodes, played through the product's own decisions.

Knows no files, no real clock, no torch and no Ray. All times are seconds of the trace.
"""
