"""Training with torch and FSDP2: one generation on one worker. Needs a process group and a run's folder, but no Ray.

`generation.train` is the entry point. Read it first, then `lifecycle` and `loop`. They use, from the bottom up:

    collectives, world                        this worker and its peers
    exact/                                    sums and norms with the same bits for every split, determinism
    models/, shard, state, optimize           the model and its optimizer
    batches, sample_batches                   micro-batches
    loader_processes, prefetch                loading them in advance
    log_probs, objectives/, reference/        the loss
    control, step, evaluate, pace             the parts of a step, evaluation, and when to commit
    checkpoints/, resume, journal             checkpoints, ledger, and where a generation begins
    collective_timeout, loop, lifecycle       the steps of one generation, its begin and its end
    custom_loop                               generations with the user's own training loop
    export/                                   a commit's model as a folder that transformers loads

`setup` and `hooks` load without torch. They hold what a driver hands to its workers.
"""
