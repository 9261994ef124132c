"""Write the tables of figures in docs/benchmarks.md, made from `bench/results/`.

python bench/_table.py        writes each between two comments; `make docs` calls it
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from planner.base.text import counted

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures: made by bench/_table.py -->\n", "<!-- end of figures -->\n"
BEGIN_COMMITS, END_COMMITS = "<!-- commits: made by bench/_table.py -->\n", "<!-- end of commits -->\n"


def table() -> str:
    """The lines between the two comments: the machine, and a table with a row for each figure."""
    rows = [
        row
        for make in (
            _step,
            _uneven,
            _resize,
            _notice,
            _autoscaler,
            _flapping,
            _chaos,
            _bitwise,
            _control,
            _measuring,
            _tracking,
            _order,
            _plan,
            _step_time,
            _balance,
            _loading,
            _on_demand,
            _same_as_trl,
            _trl_plug,
        )
        for row in make()
    ]
    names = {row.rpartition("[")[2].partition("]")[0] for row in rows}
    lines = [_machine(names), "", "| what | planner | compared with | results |", "|---|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _machine(names: Iterable[str]) -> str:
    """What these results were measured on, and when."""
    found = [_result(name) for name in names]
    words = ("{cpu}, {cores} cores, Python {python}".format(**each["machine"]) for each in found)
    dates = sorted({each["date"] for each in found})
    return f"Measured on {' and '.join(sorted(set(words)))}, {dates[0]} to {dates[-1]}."


def _result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
    return found


def _rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _result(name)["rows"]
    return found


def _row(name: str, what: str, ours: str, theirs: str) -> str:
    return f"| {what} | {ours} | {theirs} | [{name}](../bench/results/{name}.json) |"


def _step() -> list[str]:
    return [
        _row(
            "step",
            f"time of a step on {r['world_size']} workers",
            f"{r['ratio']:.2f}x (95 %: {r['ratio_95'][0]:.2f} to {r['ratio_95'][1]:.2f})",
            "a minimal hand-written FSDP2 loop with the same plan",
        )
        for r in _rows("step")
    ]


def _uneven() -> list[str]:
    return [
        _row(
            "uneven",
            f"G = 32 on {r['workers']} workers",
            f"{r['samples_per_s']:.0f} samples/s, {r['of_ideal']:.0%} of ideal",
            f"{r['divisor_samples_per_s']:.0f} on {r['largest_divisor']}, the largest divisor",
        )
        for r in _rows("uneven")
        if r["largest_divisor"] != r["workers"]
    ]


def _step_time() -> list[str]:
    if not (ROOT / "bench" / "results" / "step_time.json").exists():
        return []  # it needs a quiet machine, so it may not be measured yet
    return [
        _row(
            "step_time",
            f"seconds of a step on {r['workers']} workers, predicted from 1 and 2 ({r['configuration']}, "
            f"{r['limit'].split()[0]} of a core each)",
            f"{r['predicted_s']:.2f} s, {r['error']:+.1%} (worst of {r['repeats']}: {r['worst_error']:+.1%})",
            f"measured: {r['measured_s']:.2f} s",
        )
        for r in _rows("step_time")
        if not r["is_fitted"]
    ]


def _same_as_trl() -> list[str]:
    return [
        _row(
            "same_as_trl",
            f"{r['method'].upper()}, {r['steps']} steps: the losses at W = 7, and through 4, 3, 5",
            f"within {r['largest_difference_7']:.0e} and {r['largest_difference_4-3-5']:.0e} of TRL's",
            f"TRL at its own W = {r['their_world_size']}, loss {r['first_loss']:.2f} to {r['last_loss']:.2f}",
        )
        for r in _rows("same_as_trl")
    ]


def _trl_plug() -> list[str]:
    return [
        _row(
            "trl_plug",
            f"TRL's {r['method'].upper()} trainer, {r['steps']} steps: the losses at W = 2, 3, 5, and through 4, 3, 5",
            "with `planner.trl` within "
            + ", ".join(f"{r[f'exact_{name}']:.0e}" for name in ("2", "3", "5", "4-3-5"))
            + f" of TRL's at W = {r['their_world_size']}",
            "TRL alone: within "
            + ", ".join(f"{r[f'without_{name}']:.0e}" for name in ("2", "3", "5", "4-3-5"))
            + f", with {r['batch_without_3']} and {r['batch_without_5']} samples in place of {r['global_batch']}",
        )
        for r in _rows("trl_plug")
    ]


def _resize() -> list[str]:
    words = {"grow": "a node joins", "preempt": "a node gets a notice of 20 s", "kill": "a node dies"}
    # The demo's model, on local disk. Of ours, through memory. Older rows say none of that.
    demo = [r for r in _rows("resize") if r.get("parameters_m", 0) < 1 and r.get("storage", "local") == "local"]
    found = {(r["event"], r["policy"]): r for r in sorted(demo, key=lambda r: r.get("path", "") == "memory")}

    def cell(event: str, policy: str) -> str:
        r = found[event, policy]
        return f"{r['seconds_to_first_step']:.1f} s, pause {r['pause_s']:.1f} s, {r['steps_lost']} steps lost"

    return (
        [
            _row(
                "resize",
                words[event],
                cell(event, "ours"),
                f"Ray's own: {cell(event, 'stock')}<br>tuned: {cell(event, 'stock_tuned')}",
            )
            for event in words
        ]
        + _sizes()
        + _copies()
    )


def _sizes() -> list[str]:
    """Planned changes and deaths at real sizes: through memory and through storage, and Ray's own policies."""
    words = {"grow": "a node joins", "preempt": "a node gets a notice", "kill": "a node dies"}
    rows = {
        (r["event"], r["parameters_m"], r["storage"], r["policy"], r["path"]): r
        for r in _rows("resize")
        if r.get("parameters_m", 0) >= 1
    }
    others = {
        ("ours", "storage"): "through storage",
        ("stock", "storage"): "Ray's own",
        ("stock_tuned", "storage"): "tuned",
    }

    def cell(event: str, r: dict[str, Any]) -> str:
        if event == "kill":
            low, high = r["seconds_range"]
            return f"{r['seconds_to_first_step']:.1f} s ({low:.1f} to {high:.1f}), {r['steps_lost']} steps lost"
        low, high = r["pause_range_s"]
        lost = f", {r['steps_lost']} steps lost" if r["steps_lost"] else ""
        return f"pause {r['pause_s']:.1f} s ({low:.1f} to {high:.1f}){lost}"

    return [
        _row(
            "resize",
            f"{words[event]}, {size} M parameters, {'local disk' if storage == 'local' else storage}",
            f"through memory: {cell(event, r)}",
            "<br>".join(
                f"{name}: {cell(event, rows[event, size, storage, *other])}"
                for other, name in others.items()
                if (event, size, storage, *other) in rows
            ),
        )
        for (event, size, storage, policy, path), r in sorted(
            rows.items(), key=lambda item: (item[0][2], item[0][1], item[0][0])
        )
        if (policy, path) == ("ours", "memory")
    ]


def _copies() -> list[str]:
    """What copies in memory cost and save: at the interval that `auto` chose, and at the others."""
    rows = {r["interval"]: r for r in _rows("copies")}
    if not rows:
        return []
    chosen = rows.pop("auto")

    def cell(r: dict[str, Any]) -> str:
        return (
            f"every {counted(r['chosen'], 'step')}: {r['copies_share']:.1%} of the time, {r['steps_lost']:g} steps lost"
        )

    return [
        _row(
            "copies",
            f"copies in memory, {chosen['parameters_m']} M parameters, `auto`. A node dies",
            cell(chosen),
            "<br>".join(cell(r) for r in rows.values()),
        )
    ]


def _notice() -> list[str]:
    """Of each cloud, the notice that its spot machines get."""
    shown = ("AWS, terminate", "Google Cloud, preempted", "Azure, Preempt")
    return [
        _row(
            "notice",
            f"a spot notice on its machine ({r['notice']})",
            f"passed on after {r['seconds_to_drain']:.1f} s, committed after {r['seconds_to_commit']:.1f} s, "
            f"{r['steps_lost']} steps lost",
            f"the cloud gives {r['notice_s']} s",
        )
        for r in _rows("notice")
        if r["notice"] in shown
    ]


def _flapping() -> list[str]:
    found = {r["policy"]: r for r in _rows("flapping")}

    def cell(policy: str) -> str:
        return f"{found[policy]['samples_per_s']:.0f} samples/s, {found[policy]['resizes']} resizes"

    what = f"a node joins and leaves every 10 s for {found['ours']['minutes']:.0f} minutes"
    return [_row("flapping", what, cell("ours"), f"Ray's own: {cell('stock')}<br>tuned: {cell('stock_tuned')}")]


def _autoscaler() -> list[str]:
    about, *rows = _rows("autoscaler")
    found = {r["policy"]: r for r in rows}

    def cell(policy: str) -> str:
        r = found[policy]
        return f"{r['useful_over_ideal']:.0%} of ideal, {r['resizes']} resizes, {r['steps_lost']} steps lost"

    hours = about["trace_hours"][1] - about["trace_hours"][0]
    how_long = f"{hours:g} h of a spot trace in {about['wall_s'] / 60:g} min"
    notice = f"notices of {about['notice_s']:g} real seconds"
    what = f"{how_long}, through Ray's autoscaler, scaled to at most {about['most_nodes']} nodes, {notice}"
    return [_row("autoscaler", what, cell("ours"), f"Ray's own: {cell('stock')}<br>tuned: {cell('stock_tuned')}")]


def _chaos() -> list[str]:
    rows = _rows("chaos")
    kinds = {kind for r in rows for kind in r["faults"]}
    faults = sum(sum(r["faults"].values()) for r in rows)
    same = sum(r["weights_sha256"] == r["undisturbed_sha256"] and not r["findings"] for r in rows)
    return [
        _row(
            "chaos",
            f"{faults} faults of {len(kinds)} kinds in {len(rows)} x {rows[0]['minutes']:.0f} min",
            f"{same} of {len(rows)} runs: the same bits, {sum(r['lost'] for r in rows)} samples lost, "
            f"{sum(r['repeated'] for r in rows)} repeated, {sum(r['steps_done_again'] for r in rows)} of "
            f"{sum(r['steps'] for r in rows)} steps recomputed",
            "the same runs without faults",
        )
    ]


def _bitwise() -> list[str]:
    r = next(r for r in _rows("bitwise") if r.get("headline"))
    what = f"time of a step with `bitwise`, {r['world_size']} workers, {r['parameters'] / 1e6:.1f} M parameters"
    return [_row("bitwise", what, f"{r['ratio']:.2f}x", "a step with `batch.equality: balanced`")]


def _measuring() -> list[str]:
    r = _rows("measuring")[0]
    return [
        _row(
            "measuring",
            f"measuring tokens, memory and times, {r['workers']} workers",
            f"{r['measuring_ms']:.2f} ms",
            f"{r['percent_of_step']:.2f} % of a step of {r['step_ms']:.0f} ms",
        )
    ]


def _control() -> list[str]:
    r = _rows("control")[0]
    what = f"stop agreement, ledger and control message, {r['workers']} workers"
    return [
        _row(
            "control",
            what,
            f"{r['control_ms']:.1f} ms",
            f"{r['percent_of_step']:.1f} % of a step of {r['step_ms']:.0f} ms",
        )
    ]


def _tracking() -> list[str]:
    rows = _rows("tracking")
    noise = next(r for r in rows if r["tracker"] == "noise")
    return [
        _row(
            "tracking",
            f"time of a step of {noise['step_s'] * 1e3:.0f} ms with a tracker ({r['tracker']})",
            f"{r['ratio']:.3f}x (95 %: {r['ratio_95'][0]:.3f} to {r['ratio_95'][1]:.3f}), {r['cpu']:.2%} of a core",
            f"no tracker. Without one in both: {noise['ratio']:.3f}x ({noise['ratio_95'][0]:.3f} to "
            f"{noise['ratio_95'][1]:.3f})",
        )
        for r in rows
        if r is not noise
    ]


def _order() -> list[str]:
    return [
        _row(
            "order",
            f"the first batch of {r['samples']:,} samples",
            f"{r['planner_ms']:.1f} ms, {r['planner_mib']:.1f} MiB",
            f"DistributedSampler: {r['sampler_ms'] / 1e3:.1f} s, {r['sampler_mib']:,.0f} MiB"
            if r["sampler_ms"] is not None
            else "DistributedSampler: out of memory at 20 GiB",
        )
        for r in _rows("order")
    ]


def _plan() -> list[str]:
    seconds = max(r["seconds"] for r in _rows("plan") if r["what"].startswith("all W"))
    return [_row("plan", "the plans of all GPU counts from 1 to 4096", f"{seconds * 1e3:.0f} ms", "")]


def _balance() -> list[str]:
    found = [r for r in _rows("balance") if (r.get("costs"), r.get("max_tokens")) == ("tokens", "tight")]
    return [
        _row(
            "balance",
            f"G = {r['global_batch']} samples of {r['lengths']} lengths on 1 to 64 workers",
            f"{r['balanced'] - 1:.1%} above the lower bound (95th percentile: {r['balanced_95'] - 1:.1%})",
            f"equal numbers of samples: {r['without'] - 1:.0%} above it",
        )
        for r in found
    ]


def _loading() -> list[str]:
    opened = {(r["open"], r["kind"]): r["ms"] for r in _rows("loading") if "open" in r}
    return [
        _row(
            "loading",
            "opening 100 GB of tokens",
            f"{opened['100 GB', 'tokens']:.1f} ms",
            f"0.1 GB of jsonl: {opened['0.1 GB', 'jsonl']:,.0f} ms",
        )
    ]


def _on_demand() -> list[str]:
    found = {(r["rows"], r["form"], r["tokenize"], r["process"]): r for r in _rows("on_demand")}
    ahead = max(number for number, _, how, _ in found if how == "ahead")
    return [
        _row(
            "on_demand",
            f"{number:,} conversations until rows can be read, {name}",
            f"first start {_opening(found[number, form, how, 'first'])}, "
            f"later {_opening(found[number, form, how, 'second'])}",
            f"tokenized ahead, {ahead:,} of them: first start {_opening(found[ahead, 'jsonl', 'ahead', 'first'])}, "
            f"later {_opening(found[ahead, 'jsonl', 'ahead', 'second'])}",
        )
        for number, form, how, process in found
        if how == "on_demand" and process == "first" and number > ahead
        for name in [{"jsonl": "JSON lines", "folder": "`save_to_disk`"}.get(form, form)]
    ]


def _opening(row: dict[str, Any]) -> str:
    return f"{row['open_cpu_s']:,.1f} s of CPU, {row['peak_mib']:,} MiB"


def commits() -> str:
    """The table of what a commit costs training, a row for each measured generation."""
    columns = (
        "parameters (state)",
        "workers",
        "storage",
        "plain copy",
        "training stops (first commit)",
        "durable after",
        "a step beside the write (beside another program)",
        "0.1.0: training stops",
    )
    lines = [_machine(["commit"]), "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(_commit(r))} |" for r in _rows("commit"))]) + "\n"


def _commit(r: dict[str, Any]) -> tuple[str, ...]:
    beside = "(no whole step fits in)" if r["step_beside_s"] is None else f"{r['step_beside_s'] / r['step_s']:.2f}x"
    if strange_s := r.get("step_beside_stranger_s"):
        beside += f" ({strange_s / r['step_s']:.2f}x)"
    return (
        f"{r['parameters_m']:.0f} M ({r['state_mb']:,} MB)",
        str(r["workers"]),
        r["storage"],
        f"{r['copy_s']:.3f} s",
        f"{r['stall_s']:.3f} s ({r['first_stall_s']:.3f} s)",
        f"{r['write_s']:.1f} s",
        beside,
        f"{r['stall_0_1_0_s']:.1f} s",
    )


def place(page: str) -> str:
    """The page with both tables in their places."""
    for begin, lines, end in ((BEGIN, table(), END), (BEGIN_COMMITS, commits(), END_COMMITS)):
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{lines}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(place(PAGE.read_text()))
