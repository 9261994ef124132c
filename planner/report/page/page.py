"""The whole page as one text."""

from collections.abc import Mapping, Sequence

from planner.base.version import VERSION
from planner.report.page.html import Drawing, Html, element, joined
from planner.report.page.overlay import KEY, overlay_section
from planner.report.page.run_sections import run_section
from planner.report.page.run_values import ReportedRun
from planner.report.page.style import THEMES, style_sheet
from planner.report.text_columns import utc

# The page may load nothing and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(runs: Sequence[ReportedRun], overlay: Mapping[str, Drawing]) -> str:
    """The page as HTML.

    Args:
        runs: at least one.
        overlay: pictures with all runs, empty for one run.
    """
    title = f"planner report: {', '.join(run.label for run in runs)}"
    keys = [f"run-{at}" for at in range(1, len(runs) + 1)]
    compared = [overlay_section(runs, overlay)] if len(runs) > 1 else []
    newest_s = max(run.story.end.now_s for run in runs)
    parts = [
        element("header", element("h1", title), _when(newest_s), *([_contents(runs, keys)] if compared else [])),
        element("main", *compared, *(run_section(run, key) for run, key in zip(runs, keys, strict=True))),
        element("footer", _footer()),
    ]
    return f'<!doctype html>\n<html lang="en">\n{_head(title)}\n{element("body", joined(parts))}\n</html>\n'


def _head(title: str) -> Html:
    metas = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        *(
            f'<meta name="theme-color" media="(prefers-color-scheme: {theme})" content="{colours["page"]}">'
            for theme, colours in THEMES.items()
        ),
    ]
    return element("head", Html("\n".join(metas)), element("title", title), element("style", Html(style_sheet())))


def _when(newest_s: float) -> Html:
    words = f"Data as of {utc(newest_s)}, the time of the newest record." if newest_s else "There is no record yet."
    return element("p", words, class_="muted")


def _contents(runs: Sequence[ReportedRun], keys: Sequence[str]) -> Html:
    entries = [(KEY, "Comparison"), *zip(keys, (run.label for run in runs), strict=True)]
    items = [element("li", element("a", label, href=f"#{key}")) for key, label in entries]
    return element("nav", element("ul", *items), aria_label="Contents")


def _footer() -> str:
    return (
        f"Made by planner {VERSION} from the runs' folders alone. The same records give the same page. It loads "
        "nothing from a network and runs no script. Times are in UTC."
    )
