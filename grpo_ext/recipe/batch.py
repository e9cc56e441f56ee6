"""A recipe's batch sizes, per generation and per optimizer step, and the rules for them.

The arithmetic is TRL 1.16's (`GRPOConfig.__post_init__`, `GRPOTrainer._get_train_sampler`).
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Values

REACH = 1000  # how many values to try on each side of a size that does not fit


@dataclass(frozen=True)
class Batch:
    """A recipe's batch sizes, and the sizes of generations and steps that follow from them."""

    per_device_train_batch_size: int  # completions per micro-batch and process
    num_processes: int  # training processes
    gradient_accumulation_steps: int  # micro-batches per optimizer step
    num_generations: int  # completions per prompt (G)
    num_iterations: int = 1  # passes over each generation (mu)
    steps_per_generation: int | None = None  # set at most one of these two
    generation_batch_size: int | None = None

    @property
    def micro_batch(self) -> int:
        """The number of completions per micro-batch, over all processes."""
        return self.per_device_train_batch_size * self.num_processes

    @property
    def slices(self) -> int:
        """The number of micro-batches per generation; TRL's resolved `steps_per_generation`."""
        if self.generation_batch_size is not None:
            # 0 would cause a division by 0; `generation_of_parts_of_groups` rejects such sizes
            return self.generation_batch_size // self.micro_batch or 1
        return self.steps_per_generation or self.gradient_accumulation_steps

    @property
    def completions(self) -> int:
        """The number of completions per generation; TRL's resolved `generation_batch_size`."""
        return self.generation_batch_size or self.micro_batch * self.slices

    @property
    def prompts(self) -> int:
        """The number of prompts per generation, each with `num_generations` completions."""
        return self.completions // self.num_generations

    @property
    def passes(self) -> int:
        """The number of micro-batches that are trained on between two generations."""
        return self.slices * self.num_iterations

    @property
    def completions_per_step(self) -> int:
        """The number of completions per optimizer step."""
        return self.micro_batch * self.gradient_accumulation_steps

    @property
    def fits(self) -> bool:
        """Whether a generation consists of whole groups and of whole micro-batches."""
        return (
            self.completions % self.micro_batch == 0
            and self.completions % self.num_generations == 0
        )


def batch_of(v: Values, num_processes: int) -> Batch:
    """Return the batch sizes of a recipe trained by `num_processes` processes."""
    keys = [f.name for f in dataclasses.fields(Batch) if f.name != "num_processes"]
    sizes = {key: v[key] for key in keys}
    return Batch(num_processes=num_processes, **sizes)


def nearest_fits(batch: Batch) -> list[dict[str, int]]:
    """Return up to three changes, each of one key, that make `batch` fit; the smallest is first.

    Each change is a dict such as `{"num_generations": 6}`. Changes are ranked by the ratio of the
    larger to the smaller of the old and new values. At most `REACH` values are tried in each
    direction; those for `generation_batch_size` are multiples of both the micro-batch and
    `num_generations`.
    """
    slices = "gradient_accumulation_steps"
    for key in ("generation_batch_size", "steps_per_generation"):
        if getattr(batch, key) is not None:
            slices = key
            break
    smallest = {"num_generations": 2, "per_device_train_batch_size": 1, slices: 1}
    changes = []
    for key, minimum in smallest.items():
        old = getattr(batch, key)
        unit = 1
        if key == "generation_batch_size":
            unit = math.lcm(batch.micro_batch, batch.num_generations)
        middle = min(old, batch.completions) // unit
        first = max(minimum, middle - REACH) * unit
        end = (middle + REACH) * unit
        for new in range(first, end, unit):
            changed = dataclasses.replace(batch, **{key: new})
            if new != old and changed.fits:
                distance = abs(math.log(new / old))
                changes.append((distance, {key: new}))
    changes.sort(key=lambda change: change[0])
    return [change for _, change in changes[:3]]


def generation_of_parts_of_groups(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield a problem if a generation does not consist of whole groups and whole micro-batches.

    Also yield a problem if both `generation_batch_size` and `steps_per_generation` are set.
    """
    batch = batch_of(v, num_processes)
    if batch.generation_batch_size and batch.steps_per_generation:
        yield Problem(
            "generation_batch_size and steps_per_generation are both set. Remove one of them.",
            "generation_batch_size",
        )
        return
    if batch.fits:
        return
    changes = []
    for change in nearest_fits(batch):
        changes += [f"`{key}: {size}`" for key, size in change.items()]
    nearest = f" Set one of the nearest sizes that fit: {', '.join(changes)}." if changes else ""
    if batch.completions % batch.micro_batch:
        yield Problem(
            f"generation_batch_size ({batch.completions}) is not a multiple of the micro-batch of "
            f"{batch.micro_batch} completions (per_device_train_batch_size "
            f"{batch.per_device_train_batch_size} x {num_processes} processes).{nearest}",
            "generation_batch_size",
        )
    else:
        yield Problem(
            f"a generation batch has {batch.completions} completions (per_device_train_batch_size "
            f"{batch.per_device_train_batch_size} x {num_processes} processes x {batch.slices} "
            "micro-batches), which is not a multiple of num_generations "
            f"({batch.num_generations}).{nearest}",
            "num_generations",
        )


def whole_groups(v: Values, num_processes: int) -> int:
    """Return the smallest `per_device_eval_batch_size` that TRL accepts.

    With it, the batches of all processes together consist of whole groups.
    """
    group = v.num_generations_eval or v.num_generations
    return math.lcm(num_processes, group) // num_processes


def evaluation_of_parts_of_groups(v: Values, num_processes: int) -> Iterator[Problem]:
    """Yield a problem if an evaluation batch does not consist of whole groups, as TRL requires."""
    group = v.num_generations_eval or v.num_generations
    size = v.per_device_eval_batch_size
    if size is None or str(v.eval_strategy) == "no":
        return
    completions = size * num_processes
    if completions % group == 0:
        return
    least = whole_groups(v, num_processes)
    sizes = sorted({max(1, size // least) * least, -(-size // least) * least})
    changes = [f"`per_device_eval_batch_size: {fitting}`" for fitting in sizes]
    if v.eval_temperature is not None:
        changes.append("`num_generations_eval: 1`")
    yield Problem(
        f"an evaluation batch has {completions} completions (per_device_eval_batch_size {size} x "
        f"{num_processes} processes), which is not a multiple of the {group} completions per "
        f"prompt. Set {' or '.join(changes)}.",
        "per_device_eval_batch_size",
    )


RULES: tuple[Rule, ...] = (
    generation_of_parts_of_groups,
    evaluation_of_parts_of_groups,
)
