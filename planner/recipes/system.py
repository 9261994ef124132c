"""What planner knows of a training system: how a recipe of it is recognised and read, and how a batch is said to it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.recipes.drafting import Options
from planner.recipes.recipe import Recipe, Rewrite, product
from planner.recipes.rendering import Rendering
from planner.recipes.source import RecipeSource


@dataclass(frozen=True, kw_only=True)
class BatchSplit:
    """A recipe's global batch on so many GPUs: batch = GPUs x micro-batch x accumulation steps."""

    recipe: Recipe
    gpus: int
    micro: int
    accumulation: int
    is_own: bool
    """whether the recipe is the system's own, so that its words stay"""

    @property
    def batch(self) -> int:
        """Samples of an optimizer step."""
        return self.recipe.global_batch

    @property
    def arithmetic(self) -> str:
        """`128 = 8 GPUs x 8 x 2`."""
        return product(self.gpus, self.micro, self.accumulation, self.batch)


@dataclass(frozen=True, kw_only=True)
class System:
    """A training system. A function is None if planner cannot do that: some systems are only read, or only written.

    detect -> read -> Recipe.foreign.outcome; Recipe -> (say) -> render
    """

    name: str
    """as in `--to NAME` and in `Recipe.system`"""
    title: str
    detect: Callable[[RecipeSource], bool] | None = None
    """whether it is a recipe of this system's; the first system that says so reads it"""
    read: Callable[[RecipeSource, Options], Recipe] | None = None
    """the recipe; its `foreign` says what the system does with it at any GPU count. It may raise `RecipeError`"""
    near_miss: Callable[[RecipeSource], str] | None = None
    """why no system reads a recipe that looks like one of this system; empty if it does not look like one"""
    render: Callable[[BatchSplit, Sequence[str]], Rewrite] | None = None
    """the command or the file that says a batch; the words are those of `say`, or the recipe's own"""
    render_command: Callable[[Rendering], None] | None = None
    """writes the rest of a job in the system's options; None if planner writes only its batch"""
    methods: tuple[str, ...] = ()
    """the kinds of objectives that it trains; empty if its options do not name a loss"""

    def __post_init__(self) -> None:
        if (self.detect is None) != (self.read is None):
            raise ValueError(f"{self.name}: detect and read go together")

    def claims(self, found: RecipeSource) -> bool:
        """Whether it reads this."""
        return self.detect is not None and bool(self.detect(found))
