"""`System`, the interface to a training system: how planner recognises and reads its recipes, and writes a batch."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from planner.recipes.drafting import RecipeOptions
from planner.recipes.recipe import Recipe, Rewrite, product
from planner.recipes.rendering import Rendering
from planner.recipes.rule import NO_RULES, Rules
from planner.recipes.source import RecipeSource


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """An exact split of a recipe's global batch: batch = GPUs x micro-batch x accumulation steps."""

    recipe: Recipe
    gpus: int
    micro: int
    accumulation: int
    is_own: bool
    """whether the recipe is of the target system itself, so that its own arguments are kept"""

    environment: Mapping[str, str] = field(default_factory=dict)
    """variables to set for the command"""
    file: str = ""
    """the text of a file for options that the target reads only from one, empty if there are none"""

    @property
    def assignments(self) -> str:
        """The variables as the beginning of a command: `WANDB_PROJECT=mine `. Empty if there are none."""
        return "".join(f"{name}={shlex.quote(value)} " for name, value in self.environment.items())

    @property
    def batch(self) -> int:
        """Samples in an optimizer step."""
        return self.recipe.global_batch

    @property
    def arithmetic(self) -> str:
        """The factors of the batch as text: `128 = 8 GPUs x 8 x 2`."""
        return product(self.gpus, self.micro, self.accumulation, self.batch)


def later(path: str, **fixed: Any) -> Callable[..., Any]:
    """A function that is imported when it is called, so that a command imports only the reader that it needs.

    Args:
        path: `module:function`.
        fixed: arguments that it gets by name.
    """

    def call(*arguments: Any) -> Any:
        module, _, name = path.partition(":")
        return getattr(import_module(module), name)(*arguments, **fixed)

    return call


@dataclass(frozen=True, kw_only=True)
class System:
    """A training system. A function is None if planner cannot do that: some systems are only read, or only written.

    `check` and `convert` call detect and read. `convert --to` calls render_command, then render.
    """

    name: str
    """the system's name in `--to NAME` and in `Recipe.system`"""
    title: str
    """the system's name in messages"""
    detect: Callable[[RecipeSource], bool] | None = None
    """whether this is a recipe of the system. The first system that returns true reads it"""
    read: Callable[[RecipeSource, RecipeOptions], Recipe] | None = None
    """the recipe. Its `foreign` has what the system does at any GPU count. May raise `RecipeError`"""
    near_miss: Callable[[RecipeSource], str] | None = None
    """why no system reads a recipe that looks like one of this system, empty if it does not look like one"""
    render: Callable[[BatchSplit, Sequence[str]], Rewrite] | None = None
    """the command or file for a split, with the arguments that `render_command` wrote or the recipe's own"""
    render_command: Callable[[Rendering], None] | None = None
    """writes all of a job but its batch in the system's options. None if planner writes only the batch"""
    why_not: Callable[[Recipe, int], str] | None = None
    """why a recipe of the system has no split at a GPU count, with what to do. Empty if it may have one"""
    rules: Rules = NO_RULES
    """a row for each of its keys"""
    versions: str = ""
    """the versions that the rows are of, such as `TRL 0.19 to 1.16`"""
    listed: str = ""
    """the system's name in lists of what planner reads, such as `the DPO repository`. Empty if it is in none"""
    part: str = ""
    """what planner reads of it if not all, behind that name: `'s batch sizes`"""
    marks: tuple[str, ...] = ()
    """the keys to which a refusal points for a file of the system"""
    programs: tuple[str, ...] = ()
    """what a refusal of a command names as its programs"""
    methods: tuple[str, ...] = ()
    """the kinds of objectives that the system trains, empty if its options do not name a loss"""
    takes_repeats: bool = False
    """whether `read` takes a file that has a key twice, of which the last one counts. For others planner refuses it"""

    def __post_init__(self) -> None:
        if (self.detect is None) != (self.read is None):
            raise ValueError(f"{self.name}: detect and read go together")

    def claims(self, found: RecipeSource) -> bool:
        """Whether the system reads this recipe."""
        return self.detect is not None and bool(self.detect(found))
