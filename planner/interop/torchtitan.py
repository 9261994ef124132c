"""torchtitan's options, for writing: it refuses a global batch that GPUs and local batch do not divide."""

TITLE = "torchtitan"


def command(gpus: int, micro: int, batch: int, extra: list[str]) -> str:
    """What to type for a batch at a GPU count."""
    words = [f"--training.local_batch_size {micro}", f"--training.global_batch_size {batch}"]
    return f"NGPU={gpus} ./run_train.sh {' '.join([*words, *extra])}"
