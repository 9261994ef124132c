"""Time and memory to the first batch, beside torch's DistributedSampler at the same number of samples.

Each measurement runs in a process of its own, so that its peak memory is its own. The sampler materialises a
permutation of all samples at the start of every epoch, and again on every resume; the order computes what it is asked.
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
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started_s = time.perf_counter()
first_batch()
seconds = time.perf_counter() - started_s
print(json.dumps([seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024]))
"""


def measure(source: str) -> tuple[float, float]:
    """Seconds and MiB from imports done to the first batch of 1024 sample numbers."""
    done = subprocess.run([sys.executable, "-c", source + MEASURE], capture_output=True, text=True, check=True)
    seconds, mebibytes = json.loads(done.stdout)
    return seconds, mebibytes


def main() -> None:
    """Measure and write `bench/results/order.json`."""
    rows: list[dict[str, object]] = []
    for n in (10**6, 10**7):
        ours, sampler = measure(OURS.format(n=n)), measure(SAMPLER.format(n=n))
        rows.append(
            {
                "samples": n,
                "planner_ms": round(ours[0] * 1e3, 2),
                "sampler_ms": round(sampler[0] * 1e3, 2),
                "ratio": round(sampler[0] / ours[0]),
                "planner_mib": round(ours[1], 1),
                "sampler_mib": round(sampler[1], 1),
            }
        )
    write("order", rows)


if __name__ == "__main__":
    main()
