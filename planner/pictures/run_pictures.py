"""Every picture of a report: those of one run, and those that lay several runs over each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from planner.pictures.bars import Part, draw_bars
from planner.pictures.canvas import NARROW, WIDE, Size, css_variable, for_page, style, to_svg
from planner.pictures.lines import Panel, Series, draw_lines
from planner.pictures.timeline import MOST_PHASES, draw_timeline, time_unit
from planner.report.page.html import Drawing
from planner.report.page.parts import memory_curve, step_parts, time_parts
from planner.story.curves import Curve
from planner.story.values import RunHistory

_MOST_OTHERS = 9


def draw_run(story: RunHistory, key: str) -> dict[str, Drawing]:
    """Name -> picture, for those that the run has values for.

    Args:
        story: of the run.
        key: a word that is different for each run of a page, so that ids do not clash.
    """
    makers = {
        "timeline": _timeline(story),
        "loss": _loss(story),
        "others": _others(story),
        "speed": _speed(story),
        "measured": _measured(story),
        "times": _times(story),
        "step": _step(story),
        "commits": _commits(story),
    }
    return {name: _drawing(make, f"{key} {name}") for name, make in makers.items() if make}


def draw_overlay(stories: Sequence[RunHistory], labels: Sequence[str]) -> dict[str, Drawing]:
    """Name -> picture, with all runs in each.

    Args:
        stories: of the runs.
        labels: the name of each, for the legends.
    """
    # With one global batch, steps and samples give one picture.
    by_samples = [s.loss_by_samples for s in stories] if len({s.global_batches for s in stories}) > 1 else []
    makers = {
        "loss": _overlaid("optimizer step", [story.loss for story in stories], labels, unit="log"),
        "held_out": _overlaid("optimizer step", [story.held_out for story in stories], labels, unit="log", points=True),
        "loss_by_samples": _overlaid("samples", by_samples, labels, unit="log") if by_samples else None,
        "loss_by_time": _by_time([story.loss_by_time for story in stories], labels),
        "speed": _overlaid("optimizer step", [means(story) for story in stories], labels, from_zero=True),
    }
    return {name: _drawing(make, f"overlay {name}") for name, make in makers.items() if make}


_Maker = Callable[[Size], Figure] | None


def _drawing(make: Callable[[Size], Figure], key: str) -> Drawing:
    drawn = []
    for size in (NARROW, WIDE):
        with style(size, key):
            drawn.append(for_page(to_svg(make(size), css_variable)))
    return Drawing(narrow=drawn[0], wide=drawn[1])


def _by_step(story: RunHistory, panels: Sequence[Panel], columns: int = 1) -> _Maker:
    """A picture of the panels that have values. None if there are none."""
    panels = [panel for panel in panels if panel.series and panel.series[0].curve.x]
    changes = [change.step for change in story.changes]
    return (lambda size: draw_lines(panels, size, "optimizer step", changes, columns)) if panels else None


def _panel(title: str, curve: Curve, unit: str = "", *, number: int = 0, is_points: bool = False) -> Panel:
    """A panel from zero on, with one curve."""
    series = Series(label=title, curve=curve, number=number, is_points=is_points)
    return Panel(title=title, series=(series,), unit=unit, from_zero=True)


def _timeline(story: RunHistory) -> _Maker:
    return (
        (lambda size: draw_timeline(story.phases, story.changes, size, "UNIT since the run began"))
        if story.phases
        else None
    )


def _loss(story: RunHistory) -> _Maker:
    series = [Series(label="training", curve=story.loss)]
    if story.held_out.x:
        series.append(Series(label="held-out samples", curve=story.held_out, number=1, is_points=True))
    return _by_step(story, [Panel(title="", series=tuple(series), unit="log")])


def _others(story: RunHistory) -> _Maker:
    panels = [
        Panel(title=name, series=(Series(label=name, curve=curve, is_points=name.startswith("eval/")),))
        for name, curve in list(story.curves.items())[:_MOST_OTHERS]
    ]
    return _by_step(story, panels, columns=2)


def ideal(story: RunHistory) -> Curve:
    """By step, the samples per second of as many workers as there were, each as fast as in the fastest phase."""
    best, _ = story.best_worker
    return _levels(story, [best * phase.workers for phase in story.phases])


def means(story: RunHistory) -> Curve:
    """By step, the samples per second of each generation: all its samples by the seconds of its steps."""
    return _levels(story, [phase.samples_per_s for phase in story.phases])


def _levels(story: RunHistory, values: Sequence[float]) -> Curve:
    """A value for each phase, from its first step to the first step of the next one."""
    pairs = list(zip(story.phases, values, strict=True))[-MOST_PHASES:]
    x = [float(at) for phase, _ in pairs for at in (phase.first_step, phase.kept_step)]
    y = [value for _, value in pairs for _ in range(2)]
    return Curve(x=tuple(x), y=tuple(y), low=tuple(y), high=tuple(y))


def _speed(story: RunHistory) -> _Maker:
    if not story.speed.x:
        return None
    series = (
        Series(label="each step" if story.speed.is_exact else "some steps", curve=story.speed, is_thin=True),
        Series(label="each generation", curve=means(story), number=3, is_solid=True),
        Series(label="ideal", curve=ideal(story), is_reference=True),
    )
    return _by_step(story, [Panel(title="", series=series, from_zero=True)])


def _measured(story: RunHistory) -> _Maker:
    known = story.measured
    memory_unit, memory = memory_curve(known)
    panels = [
        _panel("Tokens per second", known.tokens_per_s),
        _panel("Model FLOPs utilization", known.mfu, "percent"),
        _panel(f"Most memory of a worker ({memory_unit})", memory),
    ]
    return _by_step(story, panels, columns=3)


def _times(story: RunHistory) -> _Maker:
    return _bars(time_parts(story), "All of the run's time")


def _step(story: RunHistory) -> _Maker:
    return _bars(step_parts(story), "All measured steps")


def _bars(seconds: Mapping[str, float], title: str) -> _Maker:
    """A part that took no time has no bar. The others keep their colours."""
    parts = [
        Part(label=label, seconds=each, number=number)
        for number, (label, each) in enumerate(seconds.items())
        if each > 0
    ]
    return (lambda size: draw_bars(parts, size, title)) if parts else None


def _commits(story: RunHistory) -> _Maker:
    commits = story.commits
    panels = [
        _panel("Pause for a commit, in seconds", commits.cost, is_points=True),
        _panel("Until it was durable, in seconds", commits.durable_after, number=2, is_points=True),
        _panel("Work at risk, in seconds of steps", commits.at_risk, number=1, is_points=True),
    ]
    return _by_step(story, panels, columns=2) if commits.number else None


def _overlaid(
    x_label: str,
    curves: Sequence[Curve],
    labels: Sequence[str],
    *,
    unit: str = "",
    from_zero: bool = False,
    points: bool = False,
) -> _Maker:
    series = tuple(
        Series(label=label, curve=curve, number=number, is_points=points)
        for number, (label, curve) in enumerate(zip(labels, curves, strict=True))
        if curve.x
    )
    panel = Panel(title="", series=series, unit=unit, from_zero=from_zero)
    return (lambda size: draw_lines([panel], size, x_label)) if series else None


def _by_time(curves: Sequence[Curve], labels: Sequence[str]) -> _Maker:
    longest_s = max((curve.x[-1] for curve in curves if curve.x), default=0.0)
    unit, second = time_unit(longest_s)
    scaled = [replace(curve, x=tuple(x / second for x in curve.x)) for curve in curves]
    return _overlaid(f"{unit} since each run began", scaled, labels, unit="log")
