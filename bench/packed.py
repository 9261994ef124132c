"""What attention within the documents of a packed row takes, by the ways there are.

    python bench/packed.py [--repeats 20] [--tokens 2048] [--documents 1 4 16]
    python bench/packed.py --device cuda       16,384 tokens, in bfloat16

Forward and backward pass of one layer's attention over one row of documents of equal length. Ways take turns. A way
that fails on this device has the error in place of figures.

mask        `scaled_dot_product_attention` with a mask of all tokens by all tokens
documents   one causal call per document (on a CPU by `planner.train.models.document_attention`)
flex        torch's flex_attention, compiled, with a block mask (GPUs)
varlen      torch's varlen_attn: flash attention with the documents' ends (GPUs)

ms          median of a pass, and its range
ratio       over `mask`, where that is possible
difference  largest difference of an output's element from that of `mask`
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from _results import hand_over
from torch import Tensor
from torch.nn import functional

from planner.train.models.document_attention import attend, mask_of

_HEADS, _WIDTH = 8, 64
Way = Callable[[Tensor, Tensor, Tensor], Tensor]


def masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """All of `(1, H, T, D)`."""
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)


def by_document(ends: list[int]) -> Way:
    """Without a mask, whose documents would have to be found on the CPU."""
    parts = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]

    def way(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.cat([masked(query[:, :, p], key[:, :, p], value[:, :, p], None) for p in parts], dim=2)

    return way


def by_flex(documents: Tensor) -> Way:
    """Compiled once per shape."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def may_attend(_row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[0, query] == documents[0, key])

    length = documents.shape[1]
    blocks = create_block_mask(may_attend, None, None, length, length, device=str(documents.device))
    return partial(torch.compile(flex_attention), block_mask=blocks)


def by_varlen(ends: list[int], device: torch.device) -> Way:
    """Tokens first, without rows."""
    from torch.nn.attention.varlen import varlen_attn

    places = torch.tensor([0, *ends], dtype=torch.int32, device=device)
    longest = max(stop - start for start, stop in zip([0, *ends], ends, strict=False))

    def way(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        flat = (each[0].transpose(0, 1) for each in (query, key, value))
        found = varlen_attn(*flat, places, places, longest, longest, window_size=(-1, 0))
        return found.transpose(0, 1)[None]

    return way


def ways_for(device: torch.device, documents: Tensor, ends: list[int]) -> dict[str, Callable[[], Way]]:
    """What can be tried there. Each makes its way."""
    mask = mask_of(documents)
    found: dict[str, Callable[[], Way]] = {
        "mask": lambda: partial(masked, mask=mask),
        "documents": lambda: lambda *heads: attend(masked, heads, mask.cpu(), tokens_dim=2),
    }
    if device.type == "cuda":
        found |= {"documents": lambda: by_document(ends)}
        found |= {"flex": lambda: by_flex(documents), "varlen": lambda: by_varlen(ends, device)}
    return found


def passed(way: Way, heads: list[Tensor]) -> tuple[float, Tensor]:
    """Seconds of forward and backward, and the output."""
    for each in heads:
        each.grad = None
    if heads[0].is_cuda:
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    found = way(*heads)
    found.sum().backward()
    if heads[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began_s, found.detach()


def beside(found: list[float], usual: list[float], output: Tensor, expected: Tensor) -> dict[str, float]:
    """What a row says of a way beside `mask`."""
    return {
        "ratio": round(statistics.median(found) / statistics.median(usual), 3),
        "difference": float(f"{float((output - expected).abs().max()):.1e}"),
    }


def measure(device: torch.device, tokens: int, number: int, repeats: int) -> list[dict[str, object]]:
    """A row for each way."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    draw = partial(torch.randn, 1, _HEADS, tokens, _WIDTH, generator=generator)
    heads = [draw().to(device, dtype).requires_grad_() for _ in range(3)]
    ends = [tokens * (place + 1) // number for place in range(number)]
    lengths = torch.tensor([stop - start for start, stop in zip([0, *ends], ends, strict=False)])
    documents = torch.arange(number).repeat_interleave(lengths)[None].to(device)
    ways, errors, outputs = {}, {}, {}
    for name, make in ways_for(device, documents, ends).items():
        try:
            ways[name] = make()
            outputs[name] = passed(ways[name], heads)[1]  # also the warm-up
        except Exception as error:  # noqa: BLE001  contract: what fails here is a row
            ways.pop(name, None)
            errors[name] = " ".join(str(error).split())[:200]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(passed(way, heads)[0])
    settings = {"device": device.type, "tokens": tokens, "documents": number}
    rows: list[dict[str, object]] = []
    for name, found in seconds.items():
        rows.append(
            {
                **settings,
                "way": name,
                "ms": round(statistics.median(found) * 1000, 2),
                "range_ms": [round(bound(found) * 1000, 2) for bound in (min, max)],
                **(beside(found, seconds["mask"], outputs[name], outputs["mask"]) if "mask" in seconds else {}),
                "repeats": repeats,
            }
        )
    return [*rows, *({**settings, "way": name, "error": text} for name, text in errors.items())]


def main() -> None:
    """Measure, write and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--toy", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--tokens", type=int, help="2048, on a GPU 16384")
    parser.add_argument("--documents", type=int, nargs="+", default=[1, 4, 16])
    settings = parser.parse_args()
    if settings.toy:
        settings.tokens, settings.repeats = 32, 2
    tokens = settings.tokens or (16_384 if settings.device == "cuda" else 2048)
    device = torch.device(settings.device)
    rows: list[dict[str, object]] = []
    for number in settings.documents:
        rows += measure(device, tokens, number, settings.repeats)
        hand_over("packed", rows)


if __name__ == "__main__":
    main()
