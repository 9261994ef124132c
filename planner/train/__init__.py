"""Training on torch and FSDP2: shard, step, exact sums, loop, checkpoint. No Ray.

The room does not know who started its processes: it needs a process group and a run's folder, nothing else.
`planner.train.generation.train` is the way in.
"""
