"""Make the parts of a trainer from its arguments and connect them."""

from collections.abc import Mapping
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback

import grpo_ext.trainer.settings as settings
from grpo_ext.curriculum.harvest import Harvest
from grpo_ext.environments.rules import COLUMNS
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.schedule import resolve_schedule
from grpo_ext.observe.health import HealthMonitor
from grpo_ext.observe.health_rules import chosen_rules
from grpo_ext.observe.run_log import RunLog
from grpo_ext.recipe.overlap_options import OverlapOptions
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.sources import check_columns
from grpo_ext.samplers.base import Sampler
from grpo_ext.samplers.choose import make_sampler, resolve_for, warn_of_another_policy, warn_of_dropout
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.sync_check import SyncCheck
from grpo_ext.samplers.vllm import OurVLLM, VLLMSampler
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.step.cut import cut
from grpo_ext.step.feed import Feed
from grpo_ext.step.groups import GroupRule
from grpo_ext.step.judge import outcome_index
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.refill import RefillRule
from grpo_ext.trainer.ahead import Ahead
from grpo_ext.trainer.checkpoint import Checkpoints, Part
from grpo_ext.trainer.evaluation import check_decoding, outcome_of
from grpo_ext.trainer.generations import Generations
from grpo_ext.trainer.judging import Judge, rewards_of
from grpo_ext.trainer.nonfinite import FiniteSteps
from grpo_ext.trainer.old_and_reference import OldAndReference
from grpo_ext.trainer.policy_update import PolicyUpdate
from grpo_ext.trainer.prompt_order import PromptOrder
from grpo_ext.trainer.rollout import Rollout
from grpo_ext.trainer.run_output import RunOutput, check_prompt, columns_of
from grpo_ext.trainer.samples import Samples
from grpo_ext.trainer.stopping import Stopping
from grpo_ext.trainer.trl_path import split


class Parts:
    """The parts to which a `GRPOExtTrainer` delegates.

    `ValueError` for arguments that do not go with the model, the data set, the sampler or the ranks.
    """

    def __init__(self, trainer: Any, sampler: Sampler | None, recipe: Mapping[str, Any] | None = None):
        check_data(trainer)
        args, process = trainer.args, trainer.accelerator
        ranks = Ranks(process.process_index, process.num_processes, process.device, process.gather, gather_object)
        accumulation, slices, uses = args.gradient_accumulation_steps, args.steps_per_generation, args.num_iterations
        schedule, by_trl = resolve_schedule(vars(args), accumulation, slices, uses), settings.trl_generates(trainer)
        limits = args.group_filter_max_rounds, args.max_staleness
        check_decoding(trainer, by_trl)
        if sampler is not None and (trainer.as_trl or by_trl):
            raise ValueError(
                "TRL generates for images and loss_normalization: micro_batch, and would not use the sampler that is given: "
                "take it out."
            )
        self.sampler = sampler or make_sampler(trainer, settings.watches(trainer, by_trl), schedule.moves)
        params = scoring_params(trainer, self.sampler, schedule.moves)
        layout, loss = settings.layout_of(trainer), settings.loss_settings(trainer)
        self.cutting = settings.cut_rule(trainer, layout, loss)
        self.scorer = settings.make_scorer(trainer, params, layout, schedule.moves and args.logprob_policy != "model")
        self.order, self.judge, self.samples = PromptOrder(trainer), Judge(trainer), Samples(trainer)
        weights, names = trainer.reward_weights.tolist(), trainer.reward_func_names
        bounds = tuple(args.group_filter_pass_rates) if args.group_filter_pass_rates else None
        self.generations = Generations(
            trainer=trainer,
            sampler=self.sampler,
            judge=self.judge,
            old_and_reference=OldAndReference(
                trainer,
                self.scorer,
                ranks,
                to_sampler=self.sampler.separate and args.behaviour_policy == "sampler",
                corrects=self.sampler.separate
                and args.vllm_importance_sampling_correction
                and args.behaviour_policy == "decoupled",
                returns_kept=self.sampler.watched,
                sync_check=make_sync_check(trainer, self.sampler, self.scorer),
            ),
            ranks=ranks,
            ends=settings.end_rule(trainer),
            training=settings.advantage_rule(trainer, True),
            evaluation=settings.advantage_rule(trainer, False),
            schedule=schedule,
            by_trl=by_trl,
            begin=settings.episodes_of(trainer, self.sampler, by_trl),
            turn_weights=settings.turn_weights(trainer),
            ahead=None if args.overlap == "off" else Ahead(self.sampler),
        )
        check_separate(trainer, sampler, self.generations)
        self.rollout = Rollout(
            trainer=trainer,
            generations=self.generations,
            order=self.order,
            samples=self.samples,
            ranks=ranks,
            groups=GroupRule(trainer.num_generations, args.pass_threshold, bounds),
            outcome=outcome_index(names, weights, args.group_filter_metric),
            refill=RefillRule.of(
                *limits, slices * uses, accumulation, trainer.num_generations, ranks.count, args.overlap != "off"
            ),
            following=self._following,
        )
        self.feed = Feed(
            lambda rows: seam.generate_and_score(trainer, rows),
            lambda table, number: split(table, number, layout.trimmed),
            lambda parts: cut(parts, self.cutting, ranks),
            slices,
            uses,
            ranks.device,
        )
        entropy, self.finite = settings.entropy_control(args), FiniteSteps(trainer)
        compares = args.logprob_policy != "trl"
        self.update = PolicyUpdate(trainer, self.scorer, loss, entropy, ranks, compares)
        settings.align_reference(trainer)
        kept: dict[str, Part] = {"rollout": self.rollout, "judge": self.judge, "entropy": entropy, "finite": self.finite}
        self.checkpoints = Checkpoints(trainer, kept | {"feed": self.feed})
        self.log = RunLog(args.log_samples, args.log_max_mb, about(trainer))
        rules = chosen_rules(args.health_rules, args.health_action)
        self.monitor = HealthMonitor(rules, self.log) if rules else None
        self.stopping = Stopping(trainer, self.finite, self.checkpoints, self.monitor, self.log)
        self.checkpoints.parts["stopping"] = self.stopping
        self.output = RunOutput(trainer, recipe)

    def _following(self) -> Any:
        """Return this rank's rows of the next generation; `None` if the run or the epoch ends before."""
        state = self.rollout.trainer.state
        last = state.global_step + self.rollout.refill.between >= state.max_steps
        return None if last else self.feed.following()

    def figures(self, training: bool) -> dict[str, float]:
        """Return the figures that are logged in addition to TRL's."""
        found: dict[str, float] = {f"rewards/{name}/failed": count for name, count in self.judge.failed.items()}
        if self.finite.skipped:
            found["skipped_steps"] = self.finite.skipped
        return {**found, **(self.order.figures() if training else {})}


def check_separate(trainer: Any, sampler: Sampler | None, generations: Generations) -> None:
    """Raise a `ValueError` for options about a separate sampler where something else makes the completions."""
    args = trainer.args
    keys = [key for key in ("overlap", "sampler", "behaviour_policy") if getattr(args, key) != getattr(OverlapOptions, key)]
    others = {
        "environments and tools": generations.begin,
        "images and tools that TRL calls": generations.by_trl,
        "loss_normalization: micro_batch": trainer.as_trl,
        "rollout_func": trainer.rollout_func,
        "a sampler that is given": sampler and args.sampler,
    }
    for other in (name for name, there in others.items() if there and keys):
        raise ValueError(f"{keys[0]}: {getattr(args, keys[0])} does not go with {other}: take one of the two out.")


def check_data(trainer: Any) -> None:
    """Raise a `ValueError` if the data sets lack the prompt or a column of a reward."""
    columns = [name for name in columns_of(trainer.train_dataset) if name != "completion"]  # TRL drops this column
    if columns and trainer.rollout_func is None:
        columns += COLUMNS if trainer.args.environment else ()
        check_columns([r.reward if isinstance(r, Guard) else r for r in trainer.reward_funcs], columns)
    for rows in trainer.eval_dataset.values() if isinstance(trainer.eval_dataset, dict) else [trainer.eval_dataset]:
        check_prompt(rows)


def callbacks_of(trainer: Any) -> list[TrainerCallback]:
    """Return the callbacks of a trainer's parts; the one that may stop the run comes last."""
    parts, args = trainer.parts, trainer.args
    found: list[TrainerCallback] = []
    if args.harvest is not None:
        if trainer.tools:
            raise ValueError("harvest keeps one message per completion, and with tools there are several: take it out.")
        given = {"min_reward": args.pass_threshold, **args.harvest}
        found.append(Harvest(trainer.reward_func_names[parts.rollout.outcome], **given))
    return [*found, parts.log, parts.output, *([parts.monitor] if parts.monitor else []), parts.stopping]


def about(trainer: Any) -> dict[str, Any]:
    """Describe rewards and data for the run log."""
    rows = trainer.train_dataset
    data = {"rows": len(rows) if hasattr(rows, "__len__") else None, "columns": columns_of(rows)}
    passes = {"outcome": outcome_of(trainer), "pass_threshold": trainer.args.pass_threshold}
    return {"rewards": rewards_of(trainer), **passes, "data": data}


def scoring_params(trainer: Any, sampler: Sampler, moves: bool) -> SamplingParams:
    """Return the sampling parameters that completions are scored with, by `logprob_policy`.

    `ValueError` if the samples cannot be scored exactly.
    """
    policy = trainer.args.logprob_policy
    if policy != "trl":
        warn_of_dropout(trainer)
    if policy == "model":
        warn_of_another_policy(trainer, sampler, moves)
        return SamplingParams()
    return SamplingParams(trainer.temperature) if policy == "trl" else resolve_for(trainer, sampler, moves)


def make_sync_check(trainer: Any, sampler: Sampler, scorer: Scorer) -> SyncCheck | None:
    """Make the check of another engine's weights; `None` if our log-probs are not those of the policy that samples."""
    args = trainer.args
    engine = sampler.vllm if isinstance(sampler, VLLMSampler) else sampler
    if not isinstance(engine, OurVLLM | ProcessSampler) or not args.vllm_sync_check_steps:
        return None
    truncated = args.top_k or args.top_p < 1 or args.min_p or args.generation_kwargs
    same = args.logprob_policy == "sampling" or not truncated
    if not same or (args.logprob_policy == "model" and args.temperature != 1.0):
        return None
    limit = args.vllm_sync_check_limit or (None if trainer.accelerator.mixed_precision == "no" else 0.2)
    return SyncCheck(engine, args.vllm_sync_check_steps, limit, scorer.params.truncated)
