"""What a loss over a large vocabulary takes: whole logits, as version 0.2.0 had them, beside chunks.

    python bench/loss.py [--repeats 5] [--tokens 2048] [--width 2048] [--vocabulary 128256]
    python bench/loss.py --device cuda       16,384 tokens, in bfloat16

It takes 20 minutes and 8 GB of memory on a CPU.

Forward and backward pass from last hidden states to a loss, in float32: sft over all tokens, dpo over a pair, kto over
two completions. Ways take turns in one process.

step_s          seconds of forward and backward (median), and their range
ratio           chunks over whole logits, of the medians
memory_mb       most bytes of all tensors that the pass makes, without the gradient of the head's weight. On a GPU, of
                the allocator's peak less what was there before and that gradient
memory_ratio    chunks over whole logits
difference      largest difference of a gradient's element, over the largest element of that gradient

It exits with 1 if chunks take more than a fifth of the memory, more than 1.2 times (sft) or 1.4 times (dpo, kto) the
time, or, in float32, if a gradient differs by more than 1e-6.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from _results import hand_over
from torch import Tensor
from torch._C._profiler import _EventType
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from planner.train.models.head import Targets, log_probs_of

_BETA = 0.1
_MEMORY_BOUND, _DIFFERENCE_BOUND = 0.2, 1e-6
_TIME_BOUNDS = {"sft": 1.2, "dpo": 1.4, "kto": 1.4}
_WAYS = ("whole", "chunks")
LogProbs = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def whole(hidden: Tensor, weight: Tensor, tokens: Tensor, is_summed: bool) -> Tensor:
    """`(n,)`, or their sum. As version 0.2.0 did it."""
    logits = functional.linear(hidden, weight)
    losses = [
        functional.cross_entropy(row.float(), targets, reduction="sum")
        for row, targets in zip(logits, tokens, strict=True)
    ]
    found = -torch.stack(losses)
    return found.sum() if is_summed else found


def chunks(hidden: Tensor, weight: Tensor, tokens: Tensor, is_summed: bool) -> Tensor:
    """`(n,)`, or their sum."""
    targets = Targets(places=torch.arange(tokens.numel()), tokens=tokens.flatten(), is_summed=is_summed)
    found = log_probs_of(hidden, weight, None, targets)
    return found if is_summed else found.view(tokens.shape).sum(dim=1)


def loss_of(objective: str, log_probs: LogProbs, hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """The loss of two sequences, without reference."""
    if objective == "sft":
        return -log_probs(hidden, weight, tokens, True) / tokens.numel()
    found = log_probs(hidden, weight, tokens, False) / tokens.shape[1]
    if objective == "dpo":
        return -functional.logsigmoid(_BETA * (found[0] - found[1]))
    return (1 - torch.sigmoid(_BETA * found * torch.tensor([1.0, -1.0], device=found.device))).mean()


class Pass:
    """The inputs of a size, and the passes over them."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (2, sizes.tokens // 2)
        self.device = torch.device(sizes.device)
        place = {"device": self.device, "dtype": torch.bfloat16 if sizes.device == "cuda" else torch.float32}
        self.hidden = torch.randn(*shape, sizes.width, generator=generator).to(**place).requires_grad_()
        weight = torch.randn(sizes.vocabulary, sizes.width, generator=generator) * 0.02
        self.weight = weight.to(**place).requires_grad_()
        self.tokens = torch.randint(sizes.vocabulary, shape, generator=generator).to(self.device)

    def run(self, objective: str, way: str) -> float:
        """Seconds of a pass. Its gradients are then in the leaves."""
        self.forget_gradients()
        self._wait()
        began_s = time.perf_counter()
        log_probs = whole if way == "whole" else chunks
        loss_of(objective, log_probs, self.hidden, self.weight, self.tokens).backward()
        self._wait()
        return time.perf_counter() - began_s

    def forget_gradients(self) -> None:
        """Free them."""
        self.hidden.grad = self.weight.grad = None

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of hidden states and weight, after a pass."""
        assert self.hidden.grad is not None
        assert self.weight.grad is not None
        return self.hidden.grad, self.weight.grad


def memory_mb(inputs: Pass, objective: str, way: str) -> float:
    """Most memory that a pass has at a time, without the gradient of the head's weight."""
    if inputs.device.type == "cuda":
        return gpu_memory_mb(inputs, objective, way)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        inputs.run(objective, way)
    head = inputs.gradients()[1].data_ptr()
    events = sorted(allocations(profiler))
    # The gradient is the last one that was made at its address.
    last = max(place for place, event in enumerate(events) if event[1] == head and event[2] > 0)
    live: dict[int, int] = {}
    most = 0
    for place, (_, address, num_bytes) in enumerate(events):
        live.pop(address, None)  # a free of what was there before the pass changes nothing
        if num_bytes > 0 and place != last:
            live[address] = num_bytes
        most = max(most, sum(live.values()))
    return most / 2**20


def gpu_memory_mb(inputs: Pass, objective: str, way: str) -> float:
    """The same by the allocator's own peak. The gradient of the head's weight exists at the end, so at the peak too."""
    inputs.forget_gradients()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    inputs.run(objective, way)
    return (torch.cuda.max_memory_allocated() - before - inputs.gradients()[1].nbytes) / 2**20


def allocations(profiler: profile) -> Iterator[tuple[int, int, int]]:
    """Time, address and bytes of each allocation on the CPU. Bytes are negative where memory is freed."""
    left = list(profiler.profiler.kineto_results.experimental_event_tree())
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            yield event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference of two gradients, over the largest element."""
    return float((found - expected).abs().max() / expected.abs().max())


def measure(sizes: argparse.Namespace, inputs: Pass, objective: str) -> dict[str, object]:
    """The row of an objective."""
    gradients, memory = {}, {}
    for way in _WAYS:  # also the warm-up
        memory[way] = memory_mb(inputs, objective, way)
        gradients[way] = inputs.gradients()
    differences = [difference(*pair) for pair in zip(gradients["chunks"], gradients["whole"], strict=True)]
    del gradients
    seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
    for _ in range(sizes.repeats):
        for way in _WAYS:
            seconds[way].append(inputs.run(objective, way))
    medians = {way: statistics.median(seconds[way]) for way in _WAYS}
    return {
        "objective": objective,
        "device": sizes.device,
        "tokens": sizes.tokens,
        "width": sizes.width,
        "vocabulary": sizes.vocabulary,
        "repeats": sizes.repeats,
        "step_s": {way: round(medians[way], 4) for way in _WAYS},
        "range_s": {way: [round(f(seconds[way]), 4) for f in (min, max)] for way in _WAYS},
        "ratio": round(medians["chunks"] / medians["whole"], 3),
        "memory_mb": {way: round(memory[way]) for way in _WAYS},
        "memory_ratio": round(memory["chunks"] / memory["whole"], 3),
        "difference": float(f"{max(differences):.1e}"),
    }


def missed(row: dict[str, object]) -> list[str]:
    """The bounds that a row misses."""
    bounds = {
        "ratio": _TIME_BOUNDS[str(row["objective"])],
        "memory_ratio": _MEMORY_BOUND,
        **({"difference": _DIFFERENCE_BOUND} if row["device"] == "cpu" else {}),
    }
    return [
        f"{row['objective']}: {name} {row[name]}, bound {bound}" for name, bound in bounds.items() if row[name] > bound
    ]  # type: ignore[operator]


def main() -> None:
    """Measure, write and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--toy", action="store_true", help="tiny sizes on the CPU, without bounds")
    parser.add_argument("--tokens", type=int, help="2048, on a GPU 16384")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    sizes = parser.parse_args()
    if sizes.toy:
        sizes.tokens, sizes.width, sizes.vocabulary, sizes.repeats = 32, 16, 500, 1
    sizes.tokens = sizes.tokens or (16_384 if sizes.device == "cuda" else 2048)
    inputs = Pass(sizes)
    rows: list[dict[str, object]] = []
    for objective in _TIME_BOUNDS:
        rows.append(measure(sizes, inputs, objective))
        hand_over("loss", rows)
    misses = [] if sizes.toy else [text for row in rows for text in missed(row)]
    for text in misses:
        print(f"missed: {text}", file=sys.stderr)
    sys.exit(1 if misses else 0)


if __name__ == "__main__":
    main()
