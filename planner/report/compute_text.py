"""How workers compute a job's passes, as text and as a value of JSON."""

from dataclasses import asdict

from planner.job.compute import FLASH, ComputeRule

_KERNELS = {"own": "torch's kernels", "liger": "Liger's kernels"}
_KEPT = {
    False: "activations kept",
    True: "activations computed again",
    "selective": "activations computed again but those of attention and of every second matrix product",
}


def compute_text(rule: ComputeRule | None) -> str:
    """`bf16, sdpa attention, torch's kernels, blocks not compiled, activations kept`. None: the user's own loop."""
    if rule is None:
        return "your own loop decides it"
    return ", ".join(
        (
            rule.precision,
            _attention(rule.attention, rule.attention_because),
            _KERNELS[rule.kernels],
            f"blocks {'compiled' if rule.compile else 'not compiled'}",
            _KEPT[rule.activation_checkpointing],
            *(["frozen layers in 4 bits (nf4)"] if rule.frozen == "nf4" else []),
        )
    )


def _attention(names: tuple[str, ...], because: str) -> str:
    first, *others = ("flash" if name == FLASH else name for name in names)
    if not others:
        return f"{first} attention"
    if because:
        return f"{first} attention where it can be used, because {because} (else {', '.join(others)})"
    return f"{first} attention where it is installed (else {', '.join(others)})"


def compute_value(rule: ComputeRule | None) -> dict[str, object] | None:
    """The same for JSON."""
    return None if rule is None else asdict(rule)
