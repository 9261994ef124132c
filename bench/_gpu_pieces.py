"""The pieces of `bench/gpu.py`: what each measures, what it needs, and about how long it takes."""

import sys
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
# A piece is ended after so many times its estimate, and some seconds for a first start from a cold disk.
_PATIENCE, _COLD_START_S = 2, 60
_PLANNER = ("torch", "numpy", "pydantic", "fsspec", "yaml", "xxhash")


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One question, and the script that answers it."""

    name: str
    what: str
    script: str
    needs: tuple[str, ...]
    """packages that must be there"""
    seconds: int
    """on an H100: measured and rounded up. Estimated for `bitwise`, which was not measured"""
    arguments: tuple[str, ...] = ()

    def command(self, device: str, *, toy: bool) -> list[str]:
        """What is run."""
        return [
            *(sys.executable, str(BENCH / self.script), "--device", device),
            *self.arguments,
            *(("--toy",) if toy else ()),
        ]

    @property
    def limit_s(self) -> float:
        """When it is ended."""
        return _PATIENCE * self.seconds + _COLD_START_S


PIECES = (
    # The first eight take ten minutes: a first figure for each question. Those that need torch alone come first, then
    # the smallest that runs planner's own loop, so that what fails on a new machine fails early.
    Piece(
        name="loss",
        what="losses over 128,256 words in chunks beside whole logits: time and memory",
        script="loss.py",
        needs=("torch",),
        seconds=15,
    ),
    Piece(
        name="sums",
        what="one hash of the weights at 1, 2 and 3 ranks on one GPU: FSDP2 and the fixed-point sums alone",
        script="_gpu_sums.py",
        needs=("torch",),
        seconds=64,
    ),
    Piece(
        name="step",
        what="our loop beside a minimal hand-written FSDP2 loop",
        script="step.py",
        needs=_PLANNER,
        seconds=40,
    ),
    Piece(
        name="compiled",
        what="a Llama of 1.24 B, blocks compiled, beside a hand-written FSDP2 loop: time, MFU, memory",
        script="_gpu_llama.py",
        needs=(*_PLANNER, "transformers"),
        seconds=110,
    ),
    Piece(
        name="commit",
        what="how long a commit of 0.8 B parameters stops training, and copies between GPU and host",
        script="_gpu_large.py",
        needs=_PLANNER,
        seconds=80,
        arguments=("--size", "1b"),
    ),
    Piece(
        name="resize",
        what="a whole run through 2, 1, 2, 3 ranks on one GPU: the bits of an undisturbed one, audit clean",
        script="_gpu_resize.py",
        needs=_PLANNER,
        seconds=132,
    ),
    Piece(
        name="dpo",
        what="DPO at equal settings in TRL and here",
        script="dpo_beside_trl.py",
        needs=(*_PLANNER, "transformers", "datasets", "trl"),
        seconds=80,
        arguments=("--python", sys.executable),
    ),
    Piece(
        name="packed",
        what="attention within the documents of a packed row: a mask, a call per document, flex and varlen",
        script="packed.py",
        needs=("torch",),
        seconds=25,
    ),
    Piece(
        name="large",
        what="a step of 3.2 B parameters: time, MFU, memory",
        script="_gpu_large.py",
        needs=_PLANNER,
        seconds=85,
        arguments=("--size", "3b"),
    ),
    Piece(
        name="packed_training",
        what="steps of a gpt and a Llama on packed micro-batches beside padded ones: losses, time, memory",
        script="_gpu_packed_training.py",
        needs=_PLANNER,
        seconds=130,
    ),
    Piece(
        name="hf",
        what="steps of a Llama by attention, kernels, compiled blocks, checkpointing and 4-bit weights: time, memory",
        script="_gpu_hf.py",
        needs=(*_PLANNER, "transformers", "peft"),
        seconds=230,
    ),
    Piece(
        name="memory",
        what="predicted memory beside what training takes, and the largest micro-batch that fits",
        script="memory.py",
        needs=(*_PLANNER, "transformers", "peft"),
        seconds=340,
    ),
    Piece(
        name="bitwise",
        what="what exact sums cost beside FSDP's own: time, bytes, memory",
        script="bitwise.py",
        needs=_PLANNER,
        seconds=80,
    ),
    Piece(
        name="optimizers",
        what="which optimizers give the same bits on shards as on whole tensors",
        script="_gpu_optimizers.py",
        needs=("torch",),
        seconds=15,
    ),
    Piece(
        name="collectives",
        what="which of gloo's collectives take this device's tensors, and that the way through the CPU is right",
        script="_gpu_collectives.py",
        needs=("torch",),
        seconds=94,
    ),
    Piece(
        name="ray",
        what="a whole run through Ray, whose nodes go 2, 1, 2: the bits of an undisturbed one, audit clean",
        script="_gpu_resize.py",
        needs=(*_PLANNER, "ray"),
        seconds=120,
        arguments=("--ray",),
    ),
)
