"""`planner fit RUN`, and what `planner plan --rates --prices` makes of it."""

import json
import re
import time

import pytest
from made_runs import BEGAN_S, commit, header, measurement, step, write_run

from planner.files import read_job
from planner.files.rates_file import read_rates
from planner.plan import BatchSizes, make_plan
from planner.store.jobs import job_digest

SIZES = BatchSizes(global_batch=64, max_micro=8)
SAMPLE_S, FIXED_S = 0.02, 0.5

L4_AND_SECOND = """\
cluster_name: small
max_workers: 6
provider: {type: aws}
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0, GPU: 0}, node_config: {}}
  one: {max_workers: 3, node_config: {InstanceType: g6.xlarge}}
  four: {max_workers: 2, node_config: {InstanceType: SECOND}}
"""


def true_s(world_size):
    """What a step of the made-up run takes: W = 2 is 1.14 s, W = 4 is 0.82 s."""
    return FIXED_S + SAMPLE_S * make_plan(SIZES, world_size).step_cost


def records_auto(digest, caps):
    """Of a run whose groups found their own micro-batches. A round takes 0.3 s besides."""
    for number, (world_size, max_micro) in enumerate(caps.items()):
        first, plan = 20 * number, make_plan(BatchSizes(global_batch=64, max_micro=max_micro), world_size)
        seconds = SAMPLE_S * plan.step_cost + 0.3 * plan.accumulation_steps
        yield header(number + 1, world_size, first, job_digest=digest, total_steps=160, max_micro=max_micro)
        for each in range(20):
            yield step(first + each, seconds=seconds * (5 if each == 0 else 1))


def records(digest, sizes, **changed):
    for number, world_size in enumerate(sizes):
        first = 20 * number
        yield header(number + 1, world_size, first, job_digest=digest, total_steps=160, **changed)
        for each in range(20):
            yield step(first + each, seconds=true_s(world_size) * (5 if each == 0 else 1))
        for _ in range(2):
            yield measurement(first + 10, BEGAN_S, input_tokens=10 * 64 * 16, communication_s=0.0)
        yield commit(first + 20, generation=number + 1)


@pytest.fixture
def demo(job):
    """The tiny job with the batch of the made-up ledgers."""
    job.write_text(job.read_text().replace("{global: 6, max_micro: 4}", "{global: 64, max_micro: 8}"))
    return job


@pytest.fixture
def run(demo, tmp_path):
    """Makes a run of the job at these sizes, and returns its folder."""

    def make(*sizes, **changed):
        folder = tmp_path / "made"
        made = write_run(folder, records(job_digest(read_job(demo)), sizes, **changed))
        made.keep_job(read_job(demo))
        return folder

    return make


def rows(text):
    """Count -> the row's cells. Two spaces separate columns."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines() if re.match(r" *\d+  ", line)]
    return {int(row[0]): row[1:] for row in cells}


@pytest.mark.parametrize("seconds", [1e155, 1e300, -1.0, 0.0, 2e9])
def test_impossible_times_are_refused(cli, demo, tmp_path, seconds):
    """Squares of 1e155 are beyond all numbers."""
    digest = job_digest(read_job(demo))
    made = write_run(
        tmp_path / "made",
        [header(1, 2, 0, job_digest=digest, total_steps=160), *(step(at, seconds=seconds) for at in range(9))],
    )
    made.keep_job(read_job(demo))
    answer = cli("fit", tmp_path / "made", "-o", "rates.yaml")
    assert (answer.code, answer.out) == (1, "")
    assert f"by the ledger, a typical step at world size 2 took {seconds:.3g} s, which is impossible" in answer.err
    assert "Traceback" not in answer.err


def test_an_impossible_commit_is_refused(cli, demo, tmp_path):
    """All of them are summed."""
    digest = job_digest(read_job(demo))
    steps = [step(at, seconds=1.0) for at in range(9)]
    made = write_run(
        tmp_path / "made",
        [header(1, 2, 0, job_digest=digest, total_steps=160), *steps, *(commit(9, seconds=1e308) for _ in range(2))],
    )
    made.keep_job(read_job(demo))
    answer = cli("fit", tmp_path / "made", "-o", "rates.yaml")
    assert answer.code == 1
    assert "a step's share of the commits took inf s, which is impossible" in answer.err


def test_a_fit_prints_each_size_and_each_term(cli, run):
    """And the file has the same numbers."""
    answer = cli("fit", run(1, 2, 4), "-o", "rates.yaml")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("tiny: global batch 64\n")
    found = rows(answer.out)
    assert {count: cells[:3] for count, cells in found.items()} == {
        count: ["19", "8", f"{true_s(count):.3g}"] for count in (1, 2, 4)
    }
    # The prior of the fit takes a part of the fixed time for samples.
    assert max(abs(float(cells[5].rstrip("%"))) for cells in found.values()) < 6
    assert re.search(r"(?m)^compute +0\.02\d* s per sample, fitted \(of the steps at W = 1, 2, 4\)$", answer.out)
    assert "The time in collectives is not known (as over NCCL), so that of bytes is in the other terms." in answer.out
    assert "commits    0.025 s per step, measured (3 commits in 60 steps)" in answer.out
    assert answer.out.endswith("\nwrote rates.yaml. Now: planner plan JOB --rates rates.yaml\n")
    rates = read_rates("rates.yaml")
    assert [each.world_size for each in rates.measured] == [1, 2, 4]
    assert (rates.job, rates.sizes, rates.sample_tokens.value) == ("tiny", SIZES, 16.0)
    assert rates.model.sample_s.value == pytest.approx(SAMPLE_S, rel=0.1)


def test_one_size_is_proportional_and_says_so(cli, run):
    """With what to do."""
    out = cli("fit", run(4), "--dry-run").out
    assert "Only one world size was measured, so a step's time is taken to be proportional to its cost." in out
    assert "wrote" not in out


def test_a_run_that_tells_nothing_is_refused(cli, run, tmp_path):
    """No run, no typical step, or no job."""
    folder = run(4)
    assert "no run here" in cli("fit", tmp_path / "nowhere").err
    next((folder / "jobs").iterdir()).unlink()
    assert "the job that it was made with is gone" in cli("fit", folder).err
    write_run(tmp_path / "new", [header(1, 4, 0), step(0)])
    assert (
        "no typical step is on record (the first step of each generation does not count)"
        in cli("fit", tmp_path / "new").err
    )


def test_a_file_is_replaced_only_by_force(cli, run):
    """Before the ledger is read."""
    folder = run(4)
    assert cli("fit", folder).code == 0
    refused = cli("fit", folder)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "planner: rates.yaml: the file exists. Write another path, or replace it with --force\n"
    assert cli("fit", folder, "--force").code == 0


def planned(cli, demo, *arguments, gpus="1-8"):
    answer = cli("plan", demo, "--rates", "rates.yaml", "--gpus", gpus, *arguments)
    assert answer.code == 0, answer.err
    return answer.out


def test_a_plan_shows_seconds_and_says_where_they_are_from(cli, demo, run):
    """Measured at 2 and 4, between them at 3, extrapolated elsewhere. Commits are in it: 0.025 s."""
    cli("fit", run(2, 4))
    out = planned(cli, demo)
    shown = {count: cells[6] for count, cells in rows(out).items()}
    assert (shown[2], shown[4]) == (f"{true_s(2) + 0.025:.3g}", f"{true_s(4) + 0.025:.3g}")
    assert [count for count, text in shown.items() if text.startswith("~")] == [1, 3, 5, 6, 7, 8]
    assert all(float(text.lstrip("~")) == pytest.approx(true_s(count), rel=0.15) for count, text in shown.items())
    header_line = next(line for line in out.splitlines() if line.startswith("GPUs"))
    assert header_line.split()[-2:] == ["s/step", "tokens/s"]
    assert "s/step: extrapolated by the step model at 1, 5-8; measured at 2, 4; between measured costs at 3." in out
    assert "The model is fitted, of a run at 2, 4 GPUs. A step's share of the commits is in it (0.025 s)." in out
    found = json.loads(planned(cli, demo, "--json"))
    assert [each["seconds_from"] for each in found[:5]] == ["beyond", "measured", "between", "measured", "beyond"]
    assert found[1]["seconds_per_step"] == pytest.approx(true_s(2) + 0.025)
    assert found[1]["tokens_per_s"] == pytest.approx(64 * 16 / found[1]["seconds_per_step"])
    assert found[1]["run_s"] == pytest.approx(4 * found[1]["seconds_per_step"])
    assert (found[1]["on_demand"], found[1]["spot"]) == (None, None)


def test_a_run_with_auto_is_fitted_with_the_rounds_of_each_size(cli, demo, tmp_path):
    """1 worker had 16 rounds of 4 samples, 2 had 4 of 8, and 4 had one of 16. No step is left out."""
    demo.write_text(demo.read_text().replace("max_micro: 8", "max_micro: auto"))
    folder = tmp_path / "made"
    made = write_run(folder, records_auto(job_digest(read_job(demo)), {1: 4, 2: 8, 4: 16}))
    made.keep_job(read_job(demo))
    out = cli("fit", folder).out
    assert [cells[:3] for cells in rows(out).values()] == [
        ["19", "4", "6.08"],
        ["19", "8", "1.84"],
        ["19", "16", "0.62"],
    ]
    assert "left out" not in out
    assert re.search(r"(?m)^rounds +0\.(29|30)\d* s per round, fitted", out)
    found = {each["world_size"]: each for each in json.loads(planned(cli, demo, "--json"))}
    assert [found[count]["seconds_from"] for count in (1, 2, 3, 4, 8)] == [
        "measured", "measured", "between", "measured", "beyond",
    ]  # fmt: skip
    assert [found[count]["seconds_per_step"] for count in (1, 2, 4)] == pytest.approx([6.08, 1.84, 0.62])
    assert (found[3]["accumulation_steps"], found[8]["accumulation_steps"]) == (3, 1)
    assert "the table has the micro-batches of the measured run" in " ".join(planned(cli, demo).split())


def test_a_job_with_other_micro_batches_takes_other_rounds(cli, demo, run):
    """Measured with 8 samples. With 2, the same samples take four times the rounds, and that is told."""
    cli("fit", run(2, 4))
    demo.write_text(demo.read_text().replace("max_micro: 8", "max_micro: 2"))
    assert "s/step: measured with other micro-batches at 2, 4, and scaled" in planned(cli, demo, gpus="2,4")
    assert {each["seconds_from"] for each in json.loads(planned(cli, demo, "--json", gpus="2,4"))} == {"rounds"}


def test_a_plan_shows_dollars_on_demand_and_spot(cli, demo, run, tmp_path):
    """Of the cheapest machines that have so many GPUs."""
    cli("fit", run(2, 4))
    (tmp_path / "prices.yaml").write_text(
        "gpus: {L4: {on_demand: 0.8, spot: 0.2, gpus_per_node: 2}, H100: {on_demand: 4}}"
    )
    asked = ("--prices", "prices.yaml", "--gpu")
    (two, three) = json.loads(planned(cli, demo, *asked, "l4", "--json", gpus="2,3"))
    usd = two["on_demand"]
    assert (usd["usd_per_hour"], usd["machines"], usd["offer"]) == (1.6, 1, "2 x L4")
    assert (three["on_demand"]["usd_per_hour"], three["spot"]["usd_per_hour"]) == (3.2, 0.8)
    assert usd["usd_per_step"] == pytest.approx(1.6 * two["seconds_per_step"] / 3600)
    assert usd["usd_per_run"] == pytest.approx(4 * usd["usd_per_step"])
    assert usd["usd_per_million_tokens"] == pytest.approx(usd["usd_per_step"] * 1e6 / (64 * 16))
    out = planned(cli, demo, *asked, "l4", gpus="2")
    assert re.search(r"\$/step \(spot\) +\$/M tokens \(spot\) +\$/run \(spot\)", out)
    assert f"{usd['usd_per_step']:.3g} ({two['spot']['usd_per_step']:.3g})" in out
    assert "on demand: 1 machine of 2 x L4 at 1.6 $ per hour for 2 GPUs, from your price list" in out
    several = planned(cli, demo, *asked, "l4", gpus="3")
    assert "on demand: 2 machines of 2 x L4 at 1.6 $ per hour each for 3 GPUs, from your price list" in several
    floor = ("--set", "workers.min=2", "--set", "workers.min_on=on-demand")
    assert "workers.min: 1.6 $ per hour on demand for 2\n" in planned(cli, demo, *asked, "l4", *floor, gpus="2")
    more = "workers.min: 1.6 $ per hour on demand for 2, and 0.8 $ spot for 3 more\n"
    assert more in planned(cli, demo, *asked, "l4", *floor, gpus="2,5")
    on_demand = planned(cli, demo, *asked, "H100", gpus="2")
    assert re.search(r"\$/step +\$/M tokens +\$/run +memory +fits\n", on_demand)
    assert "spot" not in on_demand
    assert "workers.min: 8 $ per hour on demand for 2\n" in planned(cli, demo, *asked, "H100", *floor, gpus="2,5")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ("--prices", "p.yaml"),
            "--prices needs seconds per step. Write --rates with a file that planner fit RUN wrote",
        ),
        (
            ("--rates", "rates.yaml", "--prices", "p.yaml"),
            "p.yaml: found prices of 2 kinds of GPU (A100, L4). Name one",
        ),
        (
            ("--rates", "rates.yaml", "--prices", "p.yaml", "--gpu", "H100"),
            "p.yaml: found no price of 'H100', but of A100, L4. Write --gpu with one of these names",
        ),
        (("--rates", "none.yaml"), "none.yaml: found no such file. Write the path of a rates file"),
        (
            ("--rates", "rates.yaml", "--set", "model.layers=2", "--set", "train.precision=bf16"),
            "rates.yaml: rates of another job (tiny): model.layers 1 there, 2 here; train.precision fp32 there",
        ),
        (
            ("--rates", "rates.yaml", "--set", "batch.max_tokens=64"),
            "batch.by_length false there, true here",
        ),
    ],
)
def test_what_does_not_fit_is_refused(cli, demo, run, tmp_path, arguments, error):
    """With the values of both sides."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {spot: 1}, A100: {spot: 2}}")
    answer = cli("plan", demo, *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"planner: {error}") or error in answer.err


def test_another_batch_is_the_models_alone(cli, demo, run):
    """No measured time counts, and a note says at which batch they were measured."""
    cli("fit", run(1, 2, 4))
    out = planned(cli, demo, "--set", "batch.global=128", gpus="4")
    assert rows(out)[4][6].startswith("~")
    assert float(rows(out)[4][6].lstrip("~")) == pytest.approx(FIXED_S + 32 * SAMPLE_S, rel=0.1)
    assert "s/step: by the step model alone at 4." in out
    note = "The rates were measured at a global batch of 64 and at most 8 samples in a micro-batch, so all times"
    assert note in out


def test_a_gpu_of_the_price_list_alone_has_a_price(cli, demo, run, tmp_path):
    """planner does not know all GPUs. Only its memory is not known then."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {on_demand: 1}, MI300X: {on_demand: 2}}")
    out = planned(cli, demo, "--prices", "p.yaml", "--gpu", "MI300X", gpus="2")
    assert "on demand: 2 machines of 1 x MI300X at 2 $ per hour each for 2 GPUs" in out
    assert "memory not known: planner does not know the GPU MI300X" in out


@pytest.mark.parametrize(
    ("prices", "size", "chosen"),
    [
        ("L4: {on_demand: 1}, H100: {on_demand: 2}", "24g", "L4"),
        ("L4: {on_demand: 1}, H100: {on_demand: 2}", "80GB", "H100"),
        ("A100-40GB: {on_demand: 1}, A100-80GB: {on_demand: 2}", "80g", "A100-80GB"),
        ("MI300X: {on_demand: 1}", "192g", "MI300X"),
    ],
)
def test_a_memory_names_a_gpu_if_the_list_leaves_no_choice(cli, demo, run, tmp_path, prices, size, chosen):
    """The memory of the table counts. One kind alone needs none."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text(f"gpus: {{{prices}}}")
    out = planned(cli, demo, "--prices", "p.yaml", "--gpu", size, gpus="2")
    assert f"on demand: 2 machines of 1 x {chosen} at" in out
    assert f"--gpu {size} stands for the {chosen} of the price list." in out


def test_the_memory_is_that_of_the_gpu_whose_price_counts(cli, demo, run, tmp_path):
    """An L4 has 22.5 GiB, and is sold with 24 GB. A smaller GPU is refused, also if the list has no other."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {on_demand: 1}}")
    for size in ("24g", "16g"):
        assert "fits into l4-24g (24.2 GB)" in planned(cli, demo, "--prices", "p.yaml", "--gpu", size, gpus="2")
    answer = cli("plan", demo, "--rates", "rates.yaml", "--prices", "p.yaml", "--gpu", "80g")
    assert answer.code == 2
    assert "found prices of L4 alone, which has 24 GB and not 80g. Write --gpu L4, or use another list" in answer.err


@pytest.mark.parametrize(
    ("size", "error"),
    [
        ("24g", "p.yaml: found 2 kinds of GPU with 24g (A10G, L4). Name one: --gpu A10G"),
        ("40g", "p.yaml: found no GPU that is known to have 40g, but prices of A100, A10G, L4. Write --gpu with one"),
    ],
)
def test_a_memory_that_several_or_no_gpus_have_is_refused(cli, demo, run, tmp_path, size, error):
    """An A100 may have 40 or 80 GB."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {spot: 1}, A10G: {spot: 1}, A100: {spot: 2}}")
    answer = cli("plan", demo, "--rates", "rates.yaml", "--prices", "p.yaml", "--gpu", size)
    assert (answer.code, answer.out) == (2, "")
    assert error in answer.err


@pytest.mark.parametrize(
    ("prices", "second", "answer"),
    [
        ("L4: {on_demand: 1}, H100: {on_demand: 2}", "g6.12xlarge", "2 machines of 1 x L4 at"),
        ("MI300X: {on_demand: 1}", "g6.12xlarge", "2 machines of 1 x MI300X at"),
        ("L4: {on_demand: 1}, H100: {on_demand: 2}", "g5.12xlarge", "Name one: --gpu H100"),
    ],
)
def test_a_cluster_of_one_kind_of_gpu_names_it(cli, demo, run, tmp_path, prices, second, answer):
    """If the list has it. Of several kinds, the user names one."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text(f"gpus: {{{prices}}}")
    (tmp_path / "c.yaml").write_text(L4_AND_SECOND.replace("SECOND", second))
    text = (tmp_path / "rates.yaml").read_text().replace("workers.gpus: 0", "workers.gpus: 1")
    (tmp_path / "rates.yaml").write_text(text)
    arguments = ("--rates", "rates.yaml", "--prices", "p.yaml", "--cluster", "c.yaml", "--gpus", "2")
    done = cli("plan", demo, *arguments, "--set", "workers.gpus=1")
    assert answer in done.out + done.err


def test_idle_gpus_have_an_advice(cli, demo, run, tmp_path):
    """With seconds, and with what is saved, where both rows are there."""
    cli("fit", run(2, 4))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {on_demand: 1}}")
    plain = cli("plan", demo, "--gpus", "100").out
    assert "100 GPUs are 36 more than a step of 64 samples can feed. Give back 36: a step on 64 takes as long." in plain
    priced = planned(cli, demo, "--prices", "p.yaml", gpus="64,100")
    assert re.search(r"Give back 36: a step on 64 takes (as long, [\d.]+ s|[\d.]+ s instead of [\d.]+ s)\.", priced)
    assert "Fewer cost 36 $ less per hour (on demand)." in priced
    assert "can feed" not in cli("plan", demo, "--gpus", "64").out


def test_many_workers_on_unknown_nodes_have_a_note(cli, demo, run):
    """No machine of a usual size holds more than eight. A rates file that says how many a node has needs no note."""
    note, rates = (
        "All workers count as those of one node, also 16: the rates do not say how many a node has.",
        "rates.yaml",
    )
    cli("fit", run(2, 4))
    assert note in planned(cli, demo, gpus="2,16")
    assert "one node" not in planned(cli, demo, gpus="8")
    text = (demo.parent / rates).read_text()
    (demo.parent / rates).write_text(text.replace("node_workers: null", "node_workers: 8"))
    assert "one node" not in planned(cli, demo, gpus="16")


CLUSTER = """
cluster_name: two
provider: {type: aws, region: us-west-2}
max_workers: 4
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0, GPU: 0}}
  pair: {resources: {CPU: 8, GPU: 2}, min_workers: 0, max_workers: 4}
"""


def test_a_cluster_tells_which_workers_share_a_node(cli, demo, run, tmp_path):
    """Beyond two workers, the bandwidth between nodes counts, at sizes that were not measured."""
    cli("fit", run(1, 2))
    text = (tmp_path / "rates.yaml").read_text()
    before, _, after = text.partition("  between_nodes_gbps:\n    value: null\n")
    assert after
    slow = f"{before}  between_nodes_gbps:\n    value: 1.0e-03\n{after}"
    (tmp_path / "rates.yaml").write_text(slow.replace("workers.gpus: 0", "workers.gpus: 1"))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    asked = ("--set", "workers.gpus=1", "--json")
    apart = json.loads(planned(cli, demo, *asked, "--cluster", "cluster.yaml", gpus="2,4"))
    together = json.loads(planned(cli, demo, *asked, gpus="2,4"))
    slower = [a["seconds_per_step"] > t["seconds_per_step"] for a, t in zip(apart, together, strict=True)]
    assert slower == [False, True]
    assert apart[1]["step_parts"]["gather_s"] > 0 == together[1]["step_parts"]["gather_s"]


def test_64_rows_with_rates_and_prices_are_quick(demo, run, cli, tmp_path):
    """300 ms beside the imports, of a process that has made a plan before."""
    cli("fit", run(1, 2, 3, 4, 5, 6))
    (tmp_path / "p.yaml").write_text("gpus: {L4: {on_demand: 1, spot: 0.5}}")
    planned(cli, demo, "--prices", "p.yaml", gpus="1-64")
    times = []
    for _ in range(3):
        started_s = time.perf_counter()
        planned(cli, demo, "--prices", "p.yaml", gpus="1-64")
        times.append(time.perf_counter() - started_s)
    assert min(times) < 0.3
