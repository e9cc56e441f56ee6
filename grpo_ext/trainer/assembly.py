"""Build the parts of a trainer from its arguments, and connect them."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from accelerate.utils import gather_object
from datasets import Dataset
from torch.distributed.checkpoint.stateful import Stateful
from transformers import TrainerCallback

import grpo_ext.trainer.settings as settings
from grpo_ext.common.columns import ENVIRONMENT
from grpo_ext.common.stop_strings import stop_strings_of
from grpo_ext.environments.episode_rules import COLUMNS
from grpo_ext.environments.start_episodes import NO_COLUMN, check_environment_names
from grpo_ext.observe.health import HealthMonitor
from grpo_ext.observe.health_rules import chosen_rules
from grpo_ext.observe.run_log import RunLog
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.overlap_options import OverlapOptions
from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.reward_specs import check_columns
from grpo_ext.samplers.base import Sampler
from grpo_ext.samplers.choose import make_sampler, scoring_params
from grpo_ext.seams import trl as seam
from grpo_ext.step.cut import cut
from grpo_ext.step.feed import Feed
from grpo_ext.step.loss import EntropyControl
from grpo_ext.step.records import Ranks
from grpo_ext.trainer.checkpoint import Checkpoints
from grpo_ext.trainer.constant_answer import ConstantAnswer
from grpo_ext.trainer.equal_bits import check_deterministic
from grpo_ext.trainer.evaluation import check_decoding, outcomes_of
from grpo_ext.trainer.generations import Generations
from grpo_ext.trainer.judging import Judge, rewards_of
from grpo_ext.trainer.learning import Learning
from grpo_ext.trainer.memory_choices import choose_checkpointing, choose_eval_batch_size
from grpo_ext.trainer.phases import Phases
from grpo_ext.trainer.policy import PolicyUpdate
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.prompt_order import PromptOrder
from grpo_ext.trainer.rollout import Rollout
from grpo_ext.trainer.run_output import RunOutput, check_prompt, columns_of
from grpo_ext.trainer.samples import Samples
from grpo_ext.trainer.stopping import FiniteSteps, Stopping
from grpo_ext.trainer.time_left import TimeLeft
from grpo_ext.trainer.trl_path import split_with_images


class Parts:
    """The parts to which a `GRPOExtTrainer` delegates.

    The constructor also decides on gradient checkpointing and the evaluation batch size and sets
    them in the training arguments, unless the user has set them. If the reference is a separate
    model, the policy's weights are copied into it, unless the model is sharded or quantized.

    Args:
        trainer: the trainer, whose `GRPOTrainer` constructor has run.
        sampler: the sampler that the user passed, or `None` to choose one based on the arguments.
        recipe: the values to write to `recipe.yaml`; `None` to write the trainer's arguments.

    Raises:
        ValueError: if arguments are incompatible with the model, the dataset, the sampler or the
            number of ranks.
    """

    def __init__(
        self, trainer: Trainer, sampler: Sampler | None, recipe: Mapping[str, Any] | None = None
    ):
        check_data(trainer)
        choose_eval_batch_size(trainer)
        args = trainer.args
        process = trainer.accelerator
        ranks = Ranks(
            process.process_index,
            process.num_processes,
            process.device,
            process.gather,
            gather_object,
        )
        by_trl = settings.trl_generates(trainer)
        check_decoding(trainer, by_trl)
        if by_trl and args.max_slots_per_prompt > 1:
            raise ValueError(
                "max_slots_per_prompt does not work with a multimodal processor, or with tools "
                "that TRL itself calls. Remove max_slots_per_prompt."
            )
        stops = stop_strings_of(args.generation_kwargs)
        generated_by_trl = (by_trl or trainer.as_trl) and trainer.rollout_func is None
        if generated_by_trl and stops and not trainer.use_vllm:
            raise ValueError(
                "stop_strings do not work where TRL itself generates: with a multimodal processor, "
                "with tools that TRL calls, or with `loss_normalization: micro_batch`. Remove "
                "stop_strings from generation_kwargs."
            )
        if sampler is not None and trainer.as_trl:
            raise ValueError(
                "With `loss_normalization: micro_batch`, TRL itself generates and would ignore the "
                "sampler argument. Remove the sampler argument."
            )
        if sampler is not None and by_trl:
            raise ValueError(
                "With a multimodal processor, or with tools that TRL calls, TRL itself generates "
                "and would ignore the sampler argument. Remove the sampler argument."
            )
        check_deterministic(trainer, sampler, by_trl)
        if sampler is None:
            # only our own calls of `generate` can record the kept tokens
            by_others = by_trl or trainer.as_trl or trainer.use_transformers_continuous_batching
            watched = args.logprob_policy != "trl" and not by_others
            self.sampler, params = make_sampler(trainer, watched)
        else:
            self.sampler = sampler
            params = scoring_params(trainer, sampler.abilities)
        # chosen before the layout, which depends on it; `None` if the user set it
        self.checkpointing = choose_checkpointing(trainer)
        layout = settings.layout_of(trainer)
        loss = settings.loss_settings(trainer)
        self.scorer = settings.make_scorer(trainer, params, layout)
        self.order = PromptOrder(trainer)
        self.judge = Judge(trainer)
        self.samples = Samples(trainer)
        self.learning = Learning(trainer)
        self.phases = Phases(trainer)
        self.time_left = TimeLeft(trainer, self.phases)
        self.cut_rule = settings.cut_rule(trainer, layout, loss)
        self.feed = Feed(
            partial(seam.generate_and_score, trainer),
            partial(cut, rule=self.cut_rule, ranks=ranks),
            device=ranks.device,
            num_slices=args.steps_per_generation,
            num_handouts=args.steps_per_generation * args.num_iterations,
            trimmed=layout.trimmed,
            split_with_images=split_with_images,
        )
        self.generations = Generations(
            trainer,
            self.sampler,
            self.scorer,
            self.judge,
            ranks,
            by_trl,
            self.phases,
            self.learning.played,
        )
        check_separate(trainer, sampler, self.generations)
        several_turns = self.generations.begin is not None or by_trl
        self.constant = ConstantAnswer(trainer, outcomes_of(trainer), several_turns)
        self.rollout = Rollout(
            trainer,
            self.generations,
            self.order,
            self.samples,
            ranks,
            self.feed.following,
            self.learning.generated,
            self.learning.judged,
            self.constant.collect,
        )
        self.finite = FiniteSteps(trainer)
        entropy = EntropyControl(
            enabled=args.entropy_coef != 0.0 or args.use_adaptive_entropy,
            adaptive=args.use_adaptive_entropy,
            target=args.entropy_target,
            delta=args.entropy_coef_delta,
            lowest=args.entropy_coef_min,
            highest=args.entropy_coef_max,
        )
        self.update = PolicyUpdate(
            trainer, self.scorer, loss, entropy, ranks, self.phases, self.learning.settled
        )
        settings.align_reference(trainer)
        parts_with_state: dict[str, Stateful] = {
            "rollout": self.rollout,
            "judge": self.judge,
            "finite": self.finite,
            "learning": self.learning,
            "feed": self.feed,
        }
        self.checkpoints = Checkpoints(trainer, parts_with_state)
        self.log = RunLog(args.log_samples, about(trainer))
        rules = chosen_rules(args.health_rules, args.health_action)
        self.monitor = HealthMonitor(rules, self.log) if rules else None
        self.stopping = Stopping(trainer, self.finite, self.checkpoints)
        self.output = RunOutput(trainer, recipe)

    def watch(self, trainer: Trainer) -> None:
        """Register the callbacks among the parts with the trainer.

        `stopping` is added last, because it must run after all other callbacks.
        """
        callbacks: list[TrainerCallback] = [
            self.learning,
            self.phases,
            self.time_left,
            self.log,
            self.output,
        ]
        if self.monitor is not None:
            callbacks.append(self.monitor)
        for callback in [*callbacks, self.stopping]:
            trainer.add_callback(callback)


def check_separate(trainer: Trainer, sampler: Sampler | None, generations: Generations) -> None:
    """Raise `ValueError` if options for a separate sampler conflict with how the run generates.

    The options are `overlap`, `sampler` and `behaviour_policy`. None of them works with a
    multimodal processor, tools that TRL calls, `loss_normalization: micro_batch` or a
    `rollout_func`. With an environment, or with tools that TRL does not call, only `sampler` works.
    The option `sampler` cannot be combined with the argument `sampler`.

    Args:
        trainer: the trainer, with the options.
        sampler: the argument `sampler` of the trainer; `None` if it was not given.
        generations: tells whether TRL generates, and whether episodes are played.
    """
    args = trainer.args
    if sampler is not None and args.sampler is not None:
        raise ValueError(
            f"The sampler is chosen twice: by the trainer's argument `sampler`, and by `sampler: "
            f"{args.sampler}` in the training arguments. Remove one of them."
        )
    keys = [
        key
        for key in ("overlap", "sampler", "behaviour_policy")
        if getattr(args, key) != getattr(OverlapOptions, key)
    ]
    if not keys:
        return
    beside_episodes = [key for key in keys if key != "sampler"]
    reasons = {
        "an environment or tools": generations.begin and beside_episodes,
        "a multimodal processor or tools that TRL calls": generations.by_trl,
        "`loss_normalization: micro_batch`": trainer.as_trl,
        "rollout_func": trainer.rollout_func,
    }
    for other, is_used in reasons.items():
        if is_used:
            key = (beside_episodes or keys)[0]
            raise ValueError(
                f"`{key}: {getattr(args, key)}` does not work with {other}. Remove {key}."
            )


def check_data(trainer: Trainer) -> None:
    """Check the columns of the datasets, as far as the column names are known.

    With a `rollout_func`, which may add columns, the columns that rewards need are not checked.

    Raises:
        ValueError: if the training set lacks a column that a reward needs, or has one that a reward
            does not accept; if a held-out set has no usable `prompt` column; or if there are
            several environments, and a dataset does not say which of them each row uses.
    """
    check_environment_columns(trainer)
    # TRL drops the column "completion"
    columns = [name for name in columns_of(trainer.train_dataset) if name != "completion"]
    if columns and trainer.rollout_func is None:
        if environments_of(trainer.args):
            columns += COLUMNS
        rewards = [unguarded(reward) for reward in trainer.reward_funcs]
        check_columns(rewards, columns)
    eval_dataset = trainer.eval_dataset
    if isinstance(eval_dataset, dict):
        for name, rows in eval_dataset.items():
            check_prompt(rows, f"eval_dataset[{name!r}]")
    else:
        check_prompt(eval_dataset, "eval_dataset")


def check_environment_columns(trainer: Trainer) -> None:
    """With several environments, check the column `environment` of all datasets.

    Streams are not checked. A row may also have `None`, which means no environment.

    Raises:
        ValueError: if a dataset lacks the column, or a row names an unknown environment.
    """
    environments = environments_of(trainer.args)
    if not environments or "" in environments:
        return
    eval_dataset = trainer.eval_dataset
    data_sets = [trainer.train_dataset, eval_dataset]
    if isinstance(eval_dataset, dict):
        data_sets = [trainer.train_dataset, *eval_dataset.values()]
    for rows in data_sets:
        if not isinstance(rows, Dataset):
            continue
        if ENVIRONMENT not in rows.column_names:
            raise ValueError(NO_COLUMN)
        check_environment_names(rows.unique(ENVIRONMENT), environments)


def about(trainer: Trainer) -> dict[str, Any]:
    """Return a description of the rewards and the data for the run log.

    Its keys are `rewards`, `outcome`, `outcomes`, `pass_threshold` and `data`.
    """
    rows = trainer.train_dataset
    data = {"rows": len(rows) if hasattr(rows, "__len__") else None, "columns": columns_of(rows)}
    outcomes = outcomes_of(trainer)  # each group is judged by the first that scores it
    return {
        "rewards": rewards_of(trainer),
        "outcome": outcomes[0] if outcomes else None,
        "outcomes": outcomes,
        "pass_threshold": trainer.args.pass_threshold,
        "data": data,
    }
