"""Colours and style sheet of the page, light and dark. Text has a contrast of at least 4.5, lines of at least 3."""

# Series colours are those of Okabe and Ito, which colour-blind people tell apart, in an order that suits the page.
_COLOURS = {  # on a light page, on a dark one
    "page": ("#ffffff", "#0d1117"),
    "card": ("#f6f8fa", "#161b22"),
    "border": ("#d0d7de", "#30363d"),
    "text": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9da7b3"),
    "grid": ("#e4e8ec", "#252c35"),
    "link": ("#0058a3", "#79c0ff"),
    "event": ("#b34700", "#ffa657"),
    "good": ("#00694c", "#3fcf9b"),
    "bad": ("#b3261e", "#ff8b82"),
    "workers": ("#0072b2", "#56b4e9"),
    "series0": ("#0072b2", "#56b4e9"),
    "series1": ("#d55e00", "#e69f00"),
    "series2": ("#008f68", "#2bbf93"),
    "series3": ("#bf5f94", "#cc79a7"),
    "series4": ("#2f8fc4", "#3d8fd1"),
    "series5": ("#b87f00", "#d55e00"),
    "series6": ("#1f2328", "#e6edf3"),
    "series7": ("#7a7400", "#f0e442"),
}
THEMES = {theme: {name: pair[at] for name, pair in _COLOURS.items()} for at, theme in enumerate(("light", "dark"))}

_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--text); line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 1104px; margin: 0 auto; padding: 0 16px; }
@media (min-width: 700px) { header, main, footer { padding: 0 32px; } }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1.6rem 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.35rem; line-height: 1.25; margin: 2.6rem 0 .5rem; padding-top: 1rem; overflow-wrap: anywhere;
  border-top: 2px solid var(--border); }
h3 { font-size: 1.08rem; margin: 2.1rem 0 .3rem; }
p { margin: .4rem 0 .8rem; max-width: 75ch; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
code, pre { font-family: ui-monospace, "Cascadia Mono", Menlo, "Liberation Mono", monospace; font-size: .88em; }
code { overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--border); border-radius: 6px; padding: 12px; overflow-x: auto;
  margin: .6rem 0; }
.muted { color: var(--muted); }
.state { display: inline-block; border: 1px solid currentColor; border-radius: 99px; padding: 0 .7em;
  font-size: .9rem; font-weight: 600; }
.good { color: var(--good); }
.bad { color: var(--bad); }
nav ul { list-style: none; padding: 0; margin: .6rem 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
dl.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 10px; margin: 1rem 0; }
dl.tiles > div { background: var(--card); border: 1px solid var(--border); border-radius: 8px; padding: 10px 12px; }
@media (max-width: 520px) { dl.tiles > div:last-child:nth-child(odd) { grid-column: span 2; } }
dl.tiles dt { font-size: .82rem; color: var(--muted); }
dl.tiles dd { margin: 0; font-size: 1.15rem; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
dl.tiles dd small { display: block; font-size: .82rem; font-weight: 400; color: var(--muted); }
dl.facts { display: grid; grid-template-columns: 8em 1fr; gap: .15rem 1rem; margin: .6rem 0; }
dl.facts dt { color: var(--muted); }
dl.facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
@media (max-width: 520px) { dl.facts { grid-template-columns: 6.4em 1fr; gap: .25rem .6rem; font-size: .93rem; } }
figure { margin: .6rem 0 1rem; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.narrow { max-width: 560px; }
.wide { display: none; }
@media (min-width: 860px) { .narrow { display: none; } .wide { display: block; } }
figcaption { font-size: .92rem; color: var(--muted); max-width: 85ch; margin-top: .4rem; }
details { margin: .5rem 0; }
summary { cursor: pointer; color: var(--link); padding: .25rem 0; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--border); }
th { color: var(--muted); font-weight: 600; }
th:last-child, td:last-child { padding-right: 0; }
tbody th { font-weight: 400; }
td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
ol.events { padding-left: 0; list-style: none; margin: .6rem 0; }
ol.events li { display: grid; grid-template-columns: 2.1em 1fr; gap: .5em; margin: .55rem 0; max-width: 95ch; }
ol.events .mark { color: var(--event); font-weight: 700; text-align: right; }
ol.events .when { color: var(--muted); }
ol.events p { margin: 0; overflow-wrap: anywhere; }
ul.findings li { overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: 1rem; padding-bottom: 2.5rem; font-size: .9rem; color: var(--muted); }
@media print { .narrow { display: none; } .wide { display: block; } figure, dl.tiles > div { break-inside: avoid; } }
"""


def style_sheet() -> str:
    """The page's CSS. Printed pages are light."""
    light, dark = (
        " ".join(f"--{name}: {value};" for name, value in THEMES[theme].items()) for theme in ("light", "dark")
    )
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n{_RULES.strip()}\n"
    )
