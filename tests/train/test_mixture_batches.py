"""A mixture's global batches, loaded by any number of workers."""

from hub_layout import write_sets

from planner.data.open import open_dataset
from planner.job import ChatData, GptModel
from planner.order.order import Order
from planner.plan import BatchSizes, make_plan
from planner.train.batches import Loader
from planner.train.sample_batches import text_batch

SHARES = {"alpha": 0.5, "beta": 1.0, "gamma": 0.3, "delta": 2.5, "epsilon": 0.9}
BATCH, NUM_HELD_OUT = 13, 17


def test_one_to_eight_workers_load_identical_samples(tmp_path):
    """Step by step over two epochs: the same rows with the same checksums, and evaluation has the same rows."""
    sets = write_sets(tmp_path)
    mixture = [{"path": f"{sets[name]}/data/train-*.parquet", "fraction": share} for name, share in SHARES.items()]
    model = GptModel(kind="gpt", layers=1, width=2, heads=1, context=96)
    dataset = open_dataset(ChatData(kind="chat", mixture=mixture), model)
    order = Order(
        num_rows=dataset.num_rows,
        num_held_out=NUM_HELD_OUT,
        seed=1,
        set_rows=tuple(each.num_rows for each in dataset.sets),
    )

    def loaded(num_workers, cursor=None):
        size = NUM_HELD_OUT if cursor is None else BATCH
        plan = make_plan(BatchSizes(global_batch=size, max_micro=2, equality="balanced"), num_workers)
        found = []
        for rank in range(num_workers):
            loader = Loader(dataset=dataset, order=order, plan=plan, rank=rank, make_batch=text_batch)
            found += loader.load_held_out() if cursor is None else loader.load(cursor).batches
        return sorted(row for each in found for row in each.rows), sum(each.check_sum() for each in found)

    trained = []
    for cursor in range(0, 2 * order.num_samples, BATCH):
        rows, check_sum = loaded(1, cursor)
        trained += rows
        assert rows == sorted(order.rows(cursor, cursor + BATCH).tolist())
        assert all(loaded(num_workers, cursor) == (rows, check_sum) for num_workers in range(2, 9))
    assert all(loaded(num_workers) == loaded(1) for num_workers in range(2, 9))
    assert not set(trained) & set(loaded(1)[0])
    # Two whole epochs and the beginning of a third: each training row twice, or three times.
    assert {trained.count(row) for row in set(trained)} <= {2, 3}
    assert len(set(trained)) == order.num_samples
