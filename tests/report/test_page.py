"""The page of `planner report`, from made-up records."""

import re
from dataclasses import replace
from hashlib import sha256
from itertools import product

import pytest
from made_runs import BEGAN_S, commit, event, eventful, header, long, measured, measurement, step, story_of
from page_checks import check_page

from planner.pictures.run_pictures import draw_overlay, draw_run
from planner.provenance.audit import Audit
from planner.report.page.page import page
from planner.report.page.run_values import ReportedRun
from planner.report.page.sentences import cause_words, number, sentence, span
from planner.report.page.style import THEMES, style_sheet
from planner.report.run_table import run_detail
from planner.store.survey import Survey

CLEAN = Audit(
    steps=160,
    samples=10240,
    lost=0,
    repeated=0,
    mismatched=0,
    recomputed=2,
    uncommitted=0,
    global_batches=(64,),
    phases=(),
    total_steps=160,
    held_out=(),
    weights="",
    findings=(),
)


def reported(records, label="made", audit=None, job=""):
    """A run of a page."""
    story = story_of(records, label)
    return ReportedRun(
        label=label,
        story=story,
        detail=run_detail(Survey(url=story.run, problem="")),
        audit=audit,
        not_audited="" if audit else "nothing was committed yet.",
        job=job,
        drawings=draw_run(story, sha256(label.encode(errors="replace")).hexdigest()),
    )


def page_of(*runs):
    return page(runs, draw_overlay([run.story for run in runs], [run.label for run in runs]) if len(runs) > 1 else {})


@pytest.fixture(scope="module")
def one():
    return page_of(reported(eventful(), audit=CLEAN))


def test_a_page_is_whole_and_says_what_happened(one):
    """Summary, changes with reasons, times, commits and the verdict, in words."""
    reader = check_page(one)
    assert "160 of 160 optimizer steps with a global batch of 64 samples: 10,240 samples." in reader.text
    assert "Failures undid 2 steps (128 samples)." in reader.text
    assert "Node lost: 5 -> 4 workers, 2 steps done again" in reader.text
    assert "Resize: notice for 1 worker of 4, 28 s left; room for 3." in reader.text
    assert "4 commits paused training for 2 s together" in reader.text
    assert "Audit: clean." in reader.text
    headings = re.findall(r"<h3>([^<]*)</h3>", one)
    assert headings == [
        "Workers and global batch",
        "Loss",
        "Samples per second, against the ideal",
        "Where the time went",
        "Commits",
        "Gradient norm, learning rate and metrics",
        "Audit and certificate",
        "Environment",
    ]


def test_a_picture_is_there_for_phones_and_for_wide_screens(one):
    """With one text, which has the figures."""
    reader = check_page(one)
    kinds = [attrs["class"] for attrs in reader.all("svg")]
    assert kinds == ["narrow", "wide"] * 6
    label = reader.all("svg")[0]["aria-label"]
    assert "3 workers from step 35 to 84" in label
    assert "stays at 64 samples in every step" in label


def test_every_picture_has_its_figures_as_a_table(one):
    """Below it, folded, scrolling within itself."""
    assert one.count("The figures as a table") == one.count("<figure>") == 6
    regions = [attrs for attrs in check_page(one).all("div") if attrs.get("class") == "scroll"]
    assert all(attrs["tabindex"] == "0" and attrs["aria-label"] for attrs in regions)
    assert len(regions) == 6


def test_the_same_records_give_the_same_page(one):
    """To the byte: there is no time of making."""
    assert page_of(reported(eventful(), audit=CLEAN)) == one


def test_measurements_have_sections_of_their_own():
    """Tokens, utilization and memory, and the parts of a step."""
    reader = check_page(page_of(reported(measured())))
    for words in (
        "Tokens, utilization and memory",
        "Inside a step",
        "Collectives took 8 s (20.0%)",
        "40.0%",
        "peak memory (GiB)",
    ):
        assert words in reader.text


def test_several_runs_are_compared_first():
    """In a table with the loss at the last step that all have, and in pictures with all of them."""
    shorter = [header(1, 2, 0), *(step(at, loss=4.0) for at in range(20)), commit(20)]
    text = page_of(reported(eventful(), "first", CLEAN), reported(shorter, "second"), reported([], "third"))
    reader = check_page(text)
    assert "3 runs compared" in reader.text
    assert "loss at step 20" in reader.text
    assert [attrs["href"] for attrs in reader.all("a")] == ["#compared", "#run-1", "#run-2", "#run-3"]
    assert "not audited" in reader.text
    assert "No optimizer step is on record yet." in reader.text


def test_a_comparison_names_the_run_that_another_began_from():
    """A row of its own, if there is one to name."""
    later = [header(1, 2, 0, facts={"after": {"run": "/shared/sft", "step": 40}}), step(0), commit(1)]
    named, unnamed = (page_of(reported(eventful(), "a"), reported(each, "b")) for each in (later, eventful()))
    assert '<td>after</td><td class="number"></td><td class="number">step 40 of /shared/sft</td>' in named
    assert "<td>after</td>" not in unnamed


@pytest.mark.parametrize("records", [[], [header(1, 4, 0)], [header(1, 4, 0), step(0)]])
def test_a_run_that_has_hardly_begun_has_a_page(records):
    """Without a step, or with one."""
    check_page(page_of(reported(records)))


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</svg></style></title><b>",
    "$\\frac{1}{0}$ &amp; ' \\u202e",
    "a\x00b\x1b[2J\x07",
    "\ud800 損失 😀",
    "http://example.org/x.js url(http://example.org)",
    "x" * 5000,
]


def test_texts_of_a_run_are_escaped_in_the_page():
    """Names, messages, metrics and the job are untrusted."""
    metrics = {f"{text}{number}": 1.0 for number, text in enumerate(HOSTILE)}
    records = [
        header(1, 4, 0, changed=tuple(HOSTILE)),
        step(0, metrics=metrics),
        *(event(f"resize: {text}", BEGAN_S) for text in HOSTILE),
        commit(1),
        header(2, 3, 1, changed=tuple(HOSTILE), facts={text: text for text in HOSTILE}),
        *(event(f"node lost {text}", BEGAN_S) for text in HOSTILE),
        step(1, metrics=metrics),
    ]
    audit = replace(CLEAN, findings=tuple(HOSTILE))
    label = " ".join(HOSTILE)
    reader = check_page(page_of(*(reported(records, f"{label}{at}", audit, label) for at in range(2))))
    assert not reader.all("b")
    assert reader.text.count("<script>alert(1)</script>") > 20


def test_a_finding_is_shown():
    """A page of a run that is not clean says so."""
    audit = replace(CLEAN, findings=("the chain breaks at line 7",))
    text = check_page(page_of(reported(eventful(), audit=audit))).text
    assert "Audit: NOT CLEAN." in text
    assert "the chain breaks at line 7" in text


@pytest.mark.parametrize(("steps", "generations"), [(100_000, 10), (5_000, 1000)])
def test_a_long_run_gives_a_small_page(steps, generations):
    """Of many steps, and of many generations."""
    made = page_of(reported(long(steps, generations, commit_every=10)))
    check_page(made)
    assert len(made.encode()) < 1_500_000


@pytest.mark.slow
def test_a_million_steps_give_a_small_page():
    """As many as a long pre-training run has."""
    check_page(page_of(reported(long(1_000_000, 100))))


@pytest.mark.slow
def test_eight_runs_give_a_small_page():
    """As many as a page takes."""
    check_page(page_of(*(reported(long(2_000, 20, commit_every=10), f"run {at}") for at in range(8))))


# -- colours


def luminance(colour):
    """Relative luminance, by WCAG 2.2."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_does():
    """Black on white, and a known pair."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize(("theme", "ground"), list(product(THEMES, ("page", "card"))))
def test_text_can_be_read(theme, ground):
    """WCAG AA for text, on the page and on a card."""
    colours = THEMES[theme]
    text = ("text", "muted", "link", "event", "good", "bad", "workers")
    assert {
        name: contrast(colours[name], colours[ground])
        for name in text
        if contrast(colours[name], colours[ground]) < 4.5
    } == {}


@pytest.mark.parametrize("theme", THEMES)
def test_lines_can_be_seen(theme):
    """WCAG AA for graphics, on the page."""
    colours = THEMES[theme]
    names = [name for name in colours if name.startswith("series")]
    assert {
        name: contrast(colours[name], colours["page"]) for name in names if contrast(colours[name], colours["page"]) < 3
    } == {}


def test_both_themes_have_the_same_names():
    """And the style sheet has both."""
    assert THEMES["light"].keys() == THEMES["dark"].keys()
    assert all(colour in style_sheet() for theme in THEMES.values() for colour in theme.values())


def test_every_colour_of_a_picture_is_one_of_the_page(one):
    """A picture names colours of the style sheet, and brings none of its own."""
    used = set(re.findall(r"var\(--([\w-]+)\)", one))
    assert used <= THEMES["light"].keys()
    pictures = " ".join(re.findall(r"<svg .*?</svg>", one, flags=re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r"(?:url\(|href=\")#\w+", "", pictures)) == []


# -- words


SPANS = {
    0.25: "0.25 s",
    75: "75 s",
    197: "3 min 17 s",
    18720: "5 h 12 min",
    7199.9: "120 min 0 s",
    273600: "76 h 0 min",
    4e5: "4 days 15 h",
}


@pytest.mark.parametrize(("seconds", "text"), list(SPANS.items()))
def test_durations_have_two_units(seconds, text):
    """Above two minutes."""
    assert span(seconds) == text


NUMBERS = [(10240, "10,240"), (2.56990, "2.5699"), (0.0003, "0.0003"), (12345.6, "12,345.6")]


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_numbers_are_short(value, text):
    """With separators of thousands."""
    assert number(value) == text


@pytest.mark.parametrize(
    ("cause", "after", "text"),
    [
        ("node lost", 3, "node lost"),
        ("another driver", 4, "resumed by another driver"),
        ("workers join", 5, "1 worker joins"),
        ("workers join", 6, "2 workers join"),
        ("notice", 3, "preemption notice"),
        ("workers leave", 3, "1 worker leaves"),
        ("workers leave", 2, "2 workers leave"),
        ("restart", 4, "restart"),
    ],
)
def test_a_cause_has_words(cause, after, text):
    """With the number of workers that join or leave."""
    change = story_of(eventful()).changes[0]
    assert cause_words(replace(change, cause=cause, before=4, after=after)) == text


@pytest.mark.parametrize(("message", "text"), [("it ended", "It ended."), ("Why?", "Why?"), ("", ".")])
def test_messages_become_sentences(message, text):
    """With a capital letter and one mark at the end."""
    assert sentence(message) == text


def test_values_as_large_as_floats_can_be_are_drawn():
    """Of a run that diverges, or of a damaged ledger."""
    records = [header(1, 2, 0), *(step(at, loss=(-1) ** at * 1.7e308, seconds=1e300) for at in range(900))]
    check_page(page_of(reported(records)))


def test_without_a_known_peak_the_page_says_so():
    """On a CPU there is no utilization."""
    records = [header(1, 2, 0), step(0), measurement(1, BEGAN_S, peak_flops_per_s=0.0, peak_memory_bytes=2**29)]
    reader = check_page(page_of(reported(records)))
    assert "MFU is not known here." in reader.text
    assert "peak memory (MiB)" in reader.text


def test_durable_commits_without_a_record_are_named():
    """Their manifests are there. The page says why it has no times of them."""
    run = reported([header(1, 4, 0), step(0)])
    lost = replace(run, story=replace(run.story, commits=replace(run.story.commits, unrecorded=(12, 1250))))
    text = check_page(page_of(lost)).text
    assert (
        "By manifests, steps 12, 1,250 are durable too, without a record (lost by a kill, or not written yet)." in text
    )
    assert "By manifests" not in check_page(page_of(run)).text
