"""Speed, memory and the division of a step's time: the newest measurements as values per step, and as texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from planner.base.text import duration
from planner.store.records import MeasurementRecord

_GIB, _MIB = 2**30, 2**20
_PARTS = ("data_s", "forward_s", "backward_s", "update_s", "communication_s")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The speed of some steps. Times are means per step and per worker."""

    tokens_per_s: float
    """without padding, over all workers. 0 if not known"""
    padding: float
    """padding as a fraction of all tokens that are computed. 0 if not known"""
    waiting: float | None
    """fraction of the workers' time in rounds that is spent waiting for the round's longest micro-batch, by the lengths
    of samples. None if not known"""
    mfu: float
    """model FLOPs utilization, a fraction of the devices' peak. 0 if not known"""
    peak_memory_bytes: int
    """the most of any worker: allocated on CUDA, resident on the CPU"""
    step_s: float
    data_s: float
    forward_s: float
    backward_s: float
    update_s: float
    communication_s: float
    """within the times above. 0 if not known"""

    @classmethod
    def of(cls, records: Sequence[MeasurementRecord]) -> Self:
        """The speed of the steps that these records of one generation cover together. At least one record."""
        num_steps = max(sum(record.num_steps for record in records), 1)
        step_s = sum(record.seconds for record in records) / num_steps
        seconds, tokens = step_s * num_steps, sum(record.input_tokens for record in records)
        padded = sum(record.padded_tokens for record in records)
        rounds = sum(record.round_cost for record in records)
        available = seconds * records[-1].peak_flops_per_s
        return cls(
            tokens_per_s=tokens / seconds if seconds else 0.0,
            padding=1 - tokens / padded if padded else 0.0,
            waiting=1 - sum(record.cost for record in records) / rounds if rounds else None,
            mfu=sum(record.flops for record in records) / available if available else 0.0,
            peak_memory_bytes=records[-1].peak_memory_bytes,
            step_s=step_s,
            **{name: sum(getattr(record, name) for record in records) / num_steps for name in _PARTS},
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """What is known, in short: `4,096 tokens/s`, `MFU 41%`, `38.2 GiB`."""
        tokens = f"{self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
        mfu = f"MFU {_percent(self.mfu)}" if self.mfu else ""
        return tuple(text for text in (tokens, mfu, size_text(self.peak_memory_bytes)) if text)

    @property
    def rate_text(self) -> str:
        """Tokens per second and MFU: `4,096 tokens/s (12% padding), MFU 41%`."""
        lost = f"{_percent(self.padding)} padding" + (
            f", {_percent(self.waiting)} waiting" if self.waiting is not None else ""
        )
        tokens = f"{self.tokens_per_s:,.0f} tokens/s ({lost})" if self.tokens_per_s else ""
        mfu = f"MFU {_percent(self.mfu)}" if self.mfu else "MFU not known here"
        return ", ".join(text for text in (tokens, mfu) if text)

    @property
    def memory_text(self) -> str:
        """`38.2 GiB at most, on the fullest worker`."""
        return f"{size_text(self.peak_memory_bytes)} at most, on the fullest worker" if self.peak_memory_bytes else ""

    def division_text(self, commit_s: float, commit_write_s: float = 0.0) -> str:
        """One line: a step's time, its parts in percent, and the last commit. `commit_s` is 0 if there was none."""
        if not self.step_s:
            return ""
        parts = {"data": self.data_s, "forward": self.forward_s, "backward": self.backward_s, "update": self.update_s}
        division = ", ".join(f"{name} {_percent(seconds / self.step_s)}" for name, seconds in parts.items())
        waits = f". Of it {_percent(self.communication_s / self.step_s)} in collectives" if self.communication_s else ""
        commit = (
            f". The last commit{_at_stop(commit_s, commit_write_s)} {commit_text(commit_s, commit_write_s)}"
            if commit_s
            else ""
        )
        return f"{duration(self.step_s)}: {division}{waits}{commit}"


def _at_stop(paused_s: float, write_s: float) -> str:
    """The last commit before a stop or the end is waited for."""
    return ", at a stop," if 0 < write_s <= paused_s else ""


def commit_text(paused_s: float, write_s: float) -> str:
    """`paused training for 0.1 s and was durable after 5.4 s`. Without the second part if `write_s` is 0: not known."""
    durable = f" and was durable after {duration(write_s)}" if write_s else ""
    return f"paused training for {duration(paused_s)}{durable}"


def size_text(size_bytes: int) -> str:
    """A size of memory: `38.2 GiB`, `512 MiB`. Empty for 0."""
    if size_bytes >= _GIB:
        return f"{size_bytes / _GIB:.1f} GiB"
    return f"{size_bytes / _MIB:.0f} MiB" if size_bytes else ""


def _percent(share: float) -> str:
    """`41%`, `0.4%`."""
    return f"{100 * share:.0f}%" if share >= 0.01 or not share else f"{100 * share:.1g}%"
