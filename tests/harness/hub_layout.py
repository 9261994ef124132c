"""Data sets on disk in the layout of the Hugging Face hub, with rows of conversations or pairs."""

import random

import pyarrow as pa
from pyarrow import parquet

CARD = """---
configs:
- config_name: {config}
  data_files:
  - split: train
    path: data/train-*
  - split: test
    path: data/test-*
---
# A small data set
"""

SIZES = {"alpha": 100, "beta": 37, "gamma": 250, "delta": 12, "epsilon": 64}
"""name -> rows of its training split"""


def turns(*texts):
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), texts, strict=True)]


def row(kind, name, number):
    """A row that no other set or number has."""
    answer = f"{name} {number} " + "x" * random.Random(f"{name} {number}").randint(1, 12)
    if kind == "chat":
        return {"messages": turns(f"ask {number}", answer), "extra": number}
    return {"chosen": turns(f"ask {number}", answer), "rejected": turns(f"ask {number}", "no"), "extra": number}


def write_set(folder, kind, num_rows, config="SFT"):
    """One data set with a training split, a test split of five rows, and a card."""
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", num_rows), ("test", 5)):
        rows = [row(kind, f"{folder.name} {split}", number) for number in range(count)]
        parquet.write_table(pa.Table.from_pylist(rows), folder / "data" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(CARD.format(config=config))
    return str(folder)


def write_sets(folder, kind="chat"):
    """Name -> path of five sets."""
    return {name: write_set(folder / "org" / name, kind, count) for name, count in SIZES.items()}
