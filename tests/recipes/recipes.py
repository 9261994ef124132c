"""Shipped recipes of the three systems, written out as files in each system's own format.

`recipes.csv` holds what was read from the systems' repositories, and `mixtures.csv` the data sets of the handbook's
recipes. A file is made of them, not copied from the repositories.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "recipes.csv"
MIXTURES = Path(__file__).parent / "mixtures.csv"
# The scripts take these from their arguments, so a user must give them.
SCRIPT_ARGUMENTS = ("lr=5e-7", "loss.beta=0.1")
# Stands for the data of those recipes of the handbook of which only the batch is known.
_UNNAMED_ROWS = ({"dataset": "org/rows", "config": "", "split": "train", "weight": "", "test_split": ""},)
_PYTHIA = {"EleutherAI/pythia-6.9b": "pythia69"}


@dataclass(frozen=True)
class Shipped:
    """A recipe's file, and the options that it needs."""

    id: str
    system: str
    method: str
    path: str
    arguments: tuple[str, ...]
    """overrides behind the recipe"""
    gpus: int
    global_batch: int
    accumulation: int
    eval_batch: int | None
    report_to: tuple[str, ...]
    """the trackers that it names"""

    @property
    def is_trl(self):
        return self.system == "alignment-handbook"

    @property
    def options(self):
        """The options that `planner convert` needs."""
        told = ["--halos-batch", "total"] if self.system == "HALOs" else []
        return [*told, *(["--gpus", str(self.gpus)] if self.is_trl or self.system == "DPO repo" else [])]

    @property
    def check_options(self):
        """The options that `planner check` needs, where --gpus has another meaning."""
        return [option.replace("--gpus", "--tuned-for") for option in self.options]


def rows():
    """The table, a dict per recipe."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def mixtures():
    """The data sets of each recipe of the handbook that has some: `smollm3-sft-mid` -> a dict for each set."""
    found = {}
    with MIXTURES.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["recipe"].removesuffix(".yaml").replace("/", "-"), []).append(row)
    return found


def data_lines(sets):
    """Data sets as the handbook writes them: a mixture, or `dataset_name` for a set without a weight."""
    first = sets[0]
    seed, test = first.get("seed"), first.get("test_split")
    if not first["weight"]:
        lines = {"name": first["dataset"], "config": first["config"], "train_split": first["split"], "test_split": test}
        return "".join(f"dataset_{key}: {value}\n" for key, value in lines.items() if value)
    text = "dataset_mixture:\n  datasets:\n"
    for each in sets:
        lines = {"id": each["dataset"], "config": each.get("config"), "split": each["split"]}
        lines |= {"columns": f"[{each['columns'].replace('|', ', ')}]", "weight": each["weight"]}
        listed = [f"{key}: {value}\n" for key, value in lines.items() if value]
        text += f"    - {'      '.join(listed)}"
    text += f"  seed: {seed}\n" if seed else ""
    return text + (f"  test_split_size: {test}\n" if test else "")


def write_all(folder):
    """Every recipe of the table as a file below `folder`."""
    return [write(row, folder) for row in rows()]


def write(row, folder):
    """One recipe as a file of its system."""
    writer = {"DPO repo": _dpo, "HALOs": _halos, "alignment-handbook": _trl}[row["system"]]
    path, arguments = writer(row, folder)
    evaluated = row["eval_batch_value"].split()[0]
    return Shipped(
        id=row["id"],
        system=row["system"],
        method=row["method"],
        path=str(path),
        arguments=arguments,
        gpus=int(row["gpus"]),
        global_batch=int(row["global_batch"]),
        accumulation=int(row["grad_accum"]),
        eval_batch=int(evaluated) if evaluated.isdigit() else None,
        report_to=tuple(row["report_to"].split()),
    )


def _dpo(row, folder):
    """A command as the README has them."""
    chosen = _PYTHIA.get(row["model"])
    arguments = [
        f"model={chosen}" if chosen else "model=blank_model model.name_or_path=gpt2",
        "datasets=[hh]",
        f"loss={row['method']}",
        *(["loss.beta=0.1"] if row["method"] == "dpo" else []),
        f"exp_name={row['id']}",
        f"gradient_accumulation_steps={row['grad_accum']}",
        f"batch_size={row['batch_size_value']}",
        f"eval_batch_size={row['eval_batch_value']}",
        f"trainer={row['launcher']}",
        f"optimizer={row['optimizer']}",
        f"lr={row['lr']}",
    ]
    path = folder / f"{row['id']}.sh"
    path.write_text(f"# {row['id']}\npython -u train.py {' '.join(arguments)}\n")
    return path, ()


def _halos(row, folder):
    """A script that calls accelerate inside `bash -c` with escaped dollars, as the shipped ones do."""
    lr = "${LR}" if row["lr"].startswith("$LR") else row["lr"]
    examples = [f"++{row['duration']}"] if row["duration"].startswith("n_examples") else []
    options = [
        f"launch.py loss={row['method']} model=llama train_datasets=[\\$DATA_FILE] test_datasets=[ultrabin]",
        "exp_name=\\$EXP_NAME",
        "++model.name_or_path=\\$MODEL_PATH \\$MODEL_LOAD_ARG",
        f"++lr={lr} ++warmup={row['warmup'].split()[0]} ++loss.beta=${{BETA}}",
        f"++model.batch_size={row['batch_size_value']} ++model.gradient_accumulation_steps={row['grad_accum']}",
        f"++model.eval_batch_size={row['eval_batch_value']} ++model.max_length={row['max_length']}",
        *examples,
        *(["++online=true"] if row["duration"] == "online rounds" else []),
        *(["++humanline=true"] if "humanline" in row["id"] else []),
    ]
    config = row["launcher"].removeprefix("accelerate ").removesuffix(".yaml")
    launcher = f"accelerate launch --config_file accelerate_config/{config}.yaml --machine_rank \\$SLURM_PROCID"
    lines = " \\\n    ".join([launcher, *options])
    sampled = "python -m train.sample \\$CKPT --gpu_count 2 --num_samples_per_prompt 8"
    text = f'#!/bin/bash\nBETA=$1\nLR=$2\nsrun bash -c "\nexport MODEL_PATH={row["model"]}\n{sampled}\n{lines}\n"\n'
    path = folder / f"{row['id']}.sh"
    path.write_text(text)
    said = SCRIPT_ARGUMENTS if lr.startswith("$") else SCRIPT_ARGUMENTS[1:]
    return path, said


def _trl(row, folder):
    """A flat YAML in a folder that is named after the method, as in the handbook."""
    method = row["method"].partition("/")[0]
    warmup = row["warmup"].split()[0] if row["warmup"] else None
    evaluated = row["eval_batch_value"].split()[0]
    lines = {
        "model_name_or_path": row["model"],
        "output_dir": f"data/{row['id']}",
        "per_device_train_batch_size": row["per_device_train_batch"],
        "gradient_accumulation_steps": row["grad_accum"],
        "per_device_eval_batch_size": evaluated if evaluated.isdigit() else None,
        "eval_strategy": "steps" if evaluated.isdigit() else "'no'",
        "eval_steps": 100 if evaluated.isdigit() else None,
        "learning_rate": row["lr"] or None,
        "lr_scheduler_type": row["lr_scheduler"] or None,
        "warmup_ratio": warmup,
        "num_train_epochs": row["duration"].split()[0],
        "max_length": row["max_length"].split()[0] if row["max_length"] else None,
        "packing": "true" if row["packing"] == "True" else None,
        "bf16": "true",
        "loss_type": "sigmoid" if "/" in row["method"] else None,
        "report_to": f"[{', '.join(row['report_to'].split())}]" if row["report_to"] else None,
    }
    text = "".join(f"{key}: {value}\n" for key, value in lines.items() if value is not None)
    if row["lr_scheduler"] == "cosine_with_min_lr":
        text += "lr_scheduler_kwargs:\n  min_lr_rate: 0.1\n"
    text += data_lines(mixtures().get(row["id"].removeprefix("hb-").removeprefix("readme-"), _UNNAMED_ROWS))
    place = folder / row["id"] / method
    place.mkdir(parents=True)
    path = place / "config.yaml"
    path.write_text(text)
    return path, ()
