"""Where a prompt and its completion are too long: what is cut off. Pure.

The rule of the DPO repository and of HALOs: only where they do not fit, the prompt is cut to `max_prompt`; where they
still do not, the completion's end is cut. A pair's two completions share one prompt, so the longer one decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.data.samples import Ids


@dataclass(frozen=True, kw_only=True)
class LengthLimits:
    """What a sequence may have."""

    context: int
    """tokens, those of the prompt among them"""
    max_prompt: int | None = None
    """tokens that a prompt is cut to; none: only ends are cut"""
    side: Literal["start", "end"] = "start"
    """the end of the prompt that is cut off"""

    def prompt(self, prompt: Ids, completion_length: int, num_begin: int) -> Ids:
        """The prompt, shape `(p,)`, as it is where it fits; its first `num_begin` tokens begin every text and stay."""
        wanted = self.max_prompt
        if wanted is None or len(prompt) <= wanted or len(prompt) + completion_length <= self.context:
            return prompt
        if self.side == "end":
            return prompt[:wanted]
        kept = min(num_begin, wanted)
        return np.concatenate([prompt[:kept], prompt[len(prompt) - (wanted - kept) :]])

    def completions(self, prompt: Ids, completions: Sequence[Ids], num_begin: int) -> tuple[Ids, ...] | None:
        """The prompt and each completion, cut; None if nothing of a completion would be left."""
        prompt = self.prompt(prompt, max(len(each) for each in completions), num_begin)
        room = self.context - len(prompt)
        return (prompt, *(each[:room] for each in completions)) if room > 0 else None
