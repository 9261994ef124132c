"""Training on torch and FSDP2, one generation on one worker. No Ray: it needs a process group and a run's folder.

`generation.train` is the way in. Read it first, then `lifecycle` and `loop`. What they use, from the bottom up:

    collectives, world                        this worker and its peers
    exact/                                    sums and norms with the same bits for every split; determinism
    models/, shard, state, optimize           what is trained
    batches, sample_batches, prefetch         what it is trained on
    log_probs, objectives/, reference/        what is minimised
    control, step, evaluate, pace             what a step is made of, and when to commit
    checkpoints/, resume, journal             what is kept, and where a generation begins
    collective_timeout, loop, lifecycle       the steps of one generation, and everything around them
    custom_loop                               generations whose training loop is the user's own
    export/                                   a commit's model as a folder that transformers loads

`setup` and `hooks` load without torch: they hold what a driver hands to its workers.
"""
