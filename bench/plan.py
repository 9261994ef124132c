"""How long the plans of one job take: all world sizes from 1 to 4096, and one rank's ranges in the largest plan."""

from _results import best_of, write

from planner.plan import BatchSizes, make_plan


def main() -> None:
    """Measure and write `bench/results/plan.json`."""
    rows: list[dict[str, object]] = []
    for global_batch, max_micro in [(96, 8), (4096, 8), (2**20, 4)]:
        sizes = BatchSizes(global_batch=global_batch, max_micro=max_micro)

        def every_world_size(sizes: BatchSizes = sizes) -> None:
            for world_size in range(1, 4097):
                plan = make_plan(sizes, world_size)
                _ = plan.digest, plan.warnings, plan.shares

        seconds = best_of(5, every_world_size)
        rows.append({"what": "all W in 1..4096", "global_batch": global_batch, "seconds": round(seconds, 4)})
    largest = make_plan(BatchSizes(global_batch=2**20, max_micro=1), 65_536)
    seconds = best_of(5, lambda: largest.micro_batches(65_535))
    rows.append({"what": "ranges of one rank, W = 65536", "global_batch": 2**20, "seconds": round(seconds, 7)})
    write("plan", rows)


if __name__ == "__main__":
    main()
