"""Time and memory to the first batch, beside torch's DistributedSampler at the same number of samples.

Each measurement runs in a process of its own, so that its peak memory is its own. The sampler materialises a
permutation of all samples at the start of every epoch, and again on every resume. planner computes positions on demand.
A sampler that wants more than 20 GiB is stopped there, and its columns are null.
"""

import json
import subprocess
import sys

from _results import write

OURS = """
from planner.order.order import Order
def first_batch():
    return Order(num_rows={n}, seed=0).rows(0, 1024)
"""
SAMPLER = """
from itertools import islice
from torch.utils.data import DistributedSampler
def first_batch():
    return list(islice(DistributedSampler(range({n}), num_replicas=1, rank=0, seed=0), 1024))
"""
MEASURE = """
import json, resource, time
resource.setrlimit(resource.RLIMIT_AS, (20 * 2**30, 20 * 2**30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started_s = time.perf_counter()
first_batch()
seconds = time.perf_counter() - started_s
print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


def measure(source: str) -> tuple[float, float] | None:
    """Seconds and MiB from imports done to the first batch of 1024 sample numbers. None if memory ran out."""
    done = subprocess.run([sys.executable, "-c", source + MEASURE], capture_output=True, text=True, check=False)
    if done.returncode:
        if "MemoryError" in done.stderr or "not enough memory" in done.stderr or "allocate memory" in done.stderr:
            return None
        raise RuntimeError(done.stderr)
    seconds, mebibytes = json.loads(done.stdout)
    return seconds, mebibytes


def main() -> None:
    """Measure and write `bench/results/order.json`."""
    rows: list[dict[str, object]] = []
    for n in (10**6, 10**8, 10**9):
        ours, sampler = measure(OURS.format(n=n)), measure(SAMPLER.format(n=n))
        assert ours is not None
        rows.append(
            {
                "samples": n,
                "planner_ms": round(ours[0] * 1e3, 2),
                "sampler_ms": round(sampler[0] * 1e3, 2) if sampler else None,
                "ratio": round(sampler[0] / ours[0]) if sampler else None,
                "planner_mib": round(ours[1], 1),
                "sampler_mib": round(sampler[1], 1) if sampler else None,
            }
        )
    write("order", rows)


if __name__ == "__main__":
    main()
