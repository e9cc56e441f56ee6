"""Score the best constant answer in each evaluation of a run.

A constant answer is a string that is used as the completion of every prompt. Its score shows how
much reward a model can get without reading the prompt.
"""

from dataclasses import replace
from functools import partial
from itertools import product

from accelerate.utils import gather_object

from grpo_ext.common.main_rank import from_main
from grpo_ext.evaluation.by_task import PartOfTask, parts_of_tasks
from grpo_ext.evaluation.constant import (
    answer_all,
    best_constant,
    constant_figures,
    constant_key,
    rewards_for_constants,
)
from grpo_ext.evaluation.score import Row, Sample
from grpo_ext.trainer.judging import Judged
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.samples import by_name, text_of


class ConstantAnswer:
    """Scores the best constant answer in each evaluation; all ranks must call every method.

    Args:
        trainer: the trainer, with the rewards and the option `eval_constant`.
        outcomes: the names of the rewards that may judge a group, in the order of `outcome_order`.
        several_turns: whether completions may have several turns; if so, nothing is scored.
    """

    def __init__(self, trainer: Trainer, outcomes: list[str], several_turns: bool):
        self.trainer = trainer
        self.text: str | None = None  # the best constant answer of the last evaluation
        self.outcomes = outcomes  # in the order of `outcome_order`
        # the outcome reward of each part of the last evaluation, by the prefix of its metrics
        self.judges: dict[str, str] = {}
        named = dict(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))
        self.rewards = rewards_for_constants(named)
        # with an environment, a tool or a `rollout_func`, an answer is not one string to repeat
        self.applies = bool(
            trainer.args.eval_constant
            and self.rewards
            and not several_turns
            and trainer.rollout_func is None
        )
        self._collected: list[tuple[Row, Sample]] = []  # from TRL's current evaluation

    def figures(self, rows: list[Row], samples: list[Sample]) -> dict[str, float]:
        """Return the mean rewards of the best constant answer, and set `judges` and `text`.

        For each reward NAME that scored the answer, the metrics are `NAME_constant` and, if it is
        known, the standard error `NAME_constant_se`. If rows name their task, each task has its own
        answer, and the metric names start with `tasks/TASK/`. A task without a best constant answer
        has no metrics. If `applies` is false, return an empty dict and set nothing.

        Args:
            rows: the rows of the evaluation, the same on all ranks.
            samples: their completions, the same on all ranks.
        """
        if not self.applies:
            return {}
        trainer = self.trainer
        process = trainer.accelerator
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        extras = {
            "trainer_state": trainer.state,
            "log_extra": lambda *_: None,
            "log_metric": lambda *_: None,
        }
        figures: dict[str, float] = {}
        parts = parts_of_tasks(rows, samples, self.outcomes)
        self.judges = {part.prefix: part.outcome for part in parts}
        for part in parts:
            best = from_main(process, partial(self._best, part, weights, extras))
            if best is None:
                continue
            self.text = best.text
            own_rows = part.rows[process.process_index :: process.num_processes]
            own_scores = []
            if own_rows:
                own_scores = answer_all(own_rows, best, self.rewards, extras)
            scored = gather_object(own_scores)
            each = [replace(sample, row=number) for number, sample in enumerate(scored)]
            earned = constant_figures(each, list(self.rewards))
            figures |= {f"{part.prefix}{name}": value for name, value in earned.items()}
        return figures

    def _best(self, part: PartOfTask, weights: dict[str, float], extras: Row) -> Sample | None:
        return best_constant(part.rows, part.samples, self.rewards, part.outcome, weights, extras)

    # ---- an evaluation by TRL, which comes in batches

    def collect(self, judged: Judged) -> None:
        """Store a batch of TRL's evaluation for `collected_figures`, if `applies` is true."""
        if not self.applies:
            return
        first = self.trainer.accelerator.process_index * len(judged.rows)
        own_rewards = judged.raw_rewards[first : first + len(judged.rows)].tolist()  # (b, R)
        masks = judged.table.completion_mask.bool()
        for i, row in enumerate(judged.rows):
            text = text_of(judged.completions[i], judged.is_episode(i))
            ids = judged.table.completion_ids[i][masks[i]].tolist()
            rewards = by_name(self.trainer.reward_func_names, own_rewards[i])
            self._collected.append((row, Sample(0, text, rewards, judged.lengths[i], ids=ids)))

    def collected_figures(self) -> dict[str, float]:
        """Return the best constant answer's metrics for the batches collected since the last call.

        For each reward NAME that scored the answer, the metrics are `eval_rewards/NAME/constant`
        and, if it is known, the standard error `eval_rewards/NAME/constant_se`. If the rows name
        their task, each task has its own answer, and the metric names start with `eval_tasks/TASK/`
        instead of `eval_`. The result is empty if no batches were collected, or if there is no best
        constant answer.
        """
        if not self._collected:  # true on all ranks or none; later, one rank alone may call `log`
            return {}
        collected = gather_object(self._collected)
        self._collected = []
        rows = {repr(row): row for row, _ in collected}
        numbers = {key: number for number, key in enumerate(rows)}
        samples = [replace(sample, row=numbers[repr(row)]) for row, sample in collected]
        figures = self.figures(list(rows.values()), samples)
        named = {}
        for prefix, name, ending in product(self.judges, self.rewards, ("", "_se")):
            value = figures.get(f"{prefix}{constant_key(name)}{ending}")
            if value is not None:
                key = constant_key(f"eval_{prefix}rewards/{name}/mean")
                named[f"{key}{ending}"] = value
        return named
