"""How prompts and completions that are too long are cut. Pure.

The rule of the DPO repository and of HALOs: if both do not fit together, the prompt is cut to `max_prompt`. If they
still do not fit, the end of the completion is cut. A pair's completions share one prompt, so the longer one decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from planner.data.samples import Ids


@dataclass(frozen=True, kw_only=True)
class LengthLimits:
    """The longest sequence and prompt."""

    context: int
    """tokens of prompt and completion together"""
    max_prompt: int | None = None
    """tokens that a prompt is cut to. None: prompts are not cut"""
    side: Literal["start", "end"] = "start"
    """which end of the prompt is cut off"""

    def prompt(self, prompt: Ids, completion_length: int, num_begin: int) -> Ids:
        """The prompt, shape `(p,)`, cut if prompt and completion do not fit. Its first `num_begin` tokens stay."""
        wanted = self.max_prompt
        if wanted is None or len(prompt) <= wanted or len(prompt) + completion_length <= self.context:
            return prompt
        if self.side == "end":
            return prompt[:wanted]
        kept = min(num_begin, wanted)
        return np.concatenate([prompt[:kept], prompt[len(prompt) - (wanted - kept) :]])

    def completions(self, prompt: Ids, completions: Sequence[Ids], num_begin: int) -> tuple[Ids, ...] | None:
        """The prompt and each completion, cut. None if no token of a completion would be left."""
        prompt = self.prompt(prompt, max(len(each) for each in completions), num_begin)
        room = self.context - len(prompt)
        return (prompt, *(each[:room] for each in completions)) if room > 0 else None
