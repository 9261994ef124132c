"""The part of the page that says what to trust: audit, certificate, environment, job."""

from planner.base.text import counted
from planner.provenance.audit import Audit
from planner.provenance.stage import STAGE, stage_of
from planner.report.page.html import Html, element, facts, folded, joined, paragraph
from planner.report.page.run_values import ReportedRun
from planner.report.page.sentences import batches, many
from planner.report.text_columns import utc


def trust_section(run: ReportedRun) -> Html:
    """Audit, certificate, environment and job."""
    return joined([*_audit(run), *_environment(run), *_job(run)])


def _audit(run: ReportedRun) -> list[Html]:
    heading = element("h3", "Audit and certificate")
    audit = run.audit
    if audit is None:
        return [heading, paragraph(element("strong", "Not audited."), run.not_audited)]
    verdict, kind, meaning = "NOT CLEAN", "bad", "Do not trust this run before you know why."
    if audit.clean:
        whole = "Every committed step used exactly its samples, and the chain of records is intact."
        verdict, kind, meaning = "clean", "good", whole
    strong = element("strong", f"Audit: {verdict}.", class_=kind)
    findings = [element("ul", *(element("li", each) for each in audit.findings), class_="findings")]
    return [heading, paragraph(strong, meaning), *(findings if audit.findings else []), _audit_facts(audit)]


def _audit_facts(audit: Audit) -> Html:
    certificate = (
        f"SHA-256 of the final weights {audit.weights}"
        if audit.weights
        else "none: only a finished run with batch.equality: bitwise has one"
    )
    constant = " (constant)" if len(audit.global_batches) == 1 else ""
    return facts(
        [
            ("committed", many(audit.steps, "step") + f" of {audit.total_steps:,}, {many(audit.samples, 'sample')}"),
            ("lost", f"{many(audit.lost, 'sample')} of the order that no committed step used"),
            ("repeated", f"{many(audit.repeated, 'sample')} that committed steps used more than once"),
            ("mismatched", many(audit.mismatched, "step") if audit.mismatched else ""),
            ("recomputed", f"{many(audit.recomputed, 'step')}, done again after a loss or a stop, and counted once"),
            ("uncommitted", f"{many(audit.uncommitted, 'step')} after the newest commit" if audit.uncommitted else ""),
            ("global batch", ", then ".join(map(str, audit.global_batches)) + constant),
            ("certificate", certificate),
        ]
    )


def _environment(run: ReportedRun) -> list[Html]:
    story, detail, header = run.story, run.detail, run.story.end.header
    num_samples, about = (header.num_samples, header.facts) if header else (0, {})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(story.versions.items()))
    pairs = [
        ("versions", versions or "not known: nothing was committed yet"),
        *((name.replace("_", " "), str(value)) for name, value in sorted(about.items()) if name != STAGE),
        ("after", began.whole_text if (began := stage_of(about)) else ""),
        ("hosts", ", ".join(story.hosts)),
        ("model", detail.model),
        ("objective", detail.objective),
        ("batch", f"global {batches(story)}, equality {header.identity.equality}" if header else ""),
        ("data", f"{many(num_samples, 'sample')}, fingerprint {detail.data}" if detail.data else ""),
        ("seed", str(header.identity.seed) if header else ""),
        ("began", utc(story.began_s) if story.began_s else ""),
        ("last record", utc(story.end.now_s) if story.end.now_s else ""),
        ("generations", counted(detail.num_generations, "generation")),
        ("resume", element("code", detail.resume) if detail.resume else ""),
    ]
    return [element("h3", "Environment"), facts(pairs)]


def _job(run: ReportedRun) -> list[Html]:
    return [folded("The job", element("pre", element("code", run.job), tabindex="0"))] if run.job else []
