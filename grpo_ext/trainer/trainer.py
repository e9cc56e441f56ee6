"""`GRPOExtTrainer`: TRL's `GRPOTrainer` with few overrides, each short.

With `loss_normalization: micro_batch`, `logprob_policy: trl`, `fast_generate: false`, `disable_dropout: false` and rewards that
answer every row, a run is bit for bit TRL's own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from trl import GRPOConfig, GRPOTrainer

from grpo_ext.observe.health import HealthMonitor
from grpo_ext.observe.health_rules import chosen_rules
from grpo_ext.observe.run_log import RunLog
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.rewards.guard import RewardFailure
from grpo_ext.trainer.contract import check_contract
from grpo_ext.trainer.curriculum import PromptOrder
from grpo_ext.trainer.engine import our_engine
from grpo_ext.trainer.evaluation import decoding_of, evaluate_policy, outcome_of
from grpo_ext.trainer.leaving import EndOfStep, LeavesCleanly
from grpo_ext.trainer.nonfinite import FiniteSteps
from grpo_ext.trainer.objective import ExactObjective
from grpo_ext.trainer.resume import ExactResume
from grpo_ext.trainer.rewards import (
    EarlyRewards,
    describe_rewards,
    fill_unscored,
    guarded_rewards,
    reward_pool,
    settle_failures,
)
from grpo_ext.trainer.rollout import FastRollout
from grpo_ext.trainer.samples import HandsOutSamples
from grpo_ext.trainer.sync_check import SyncCheck
from grpo_ext.vllm import EngineFailure


class GRPOExtTrainer(
    LeavesCleanly,
    FiniteSteps,
    ExactResume,
    PromptOrder,
    HandsOutSamples,
    ExactObjective,
    EarlyRewards,
    FastRollout,
    SyncCheck,
    GRPOTrainer,
):
    """Drop-in `GRPOTrainer`: every argument that TRL's class takes works unchanged.

    Args:
        model: as in TRL: a model, or the id or path of one.
        reward_funcs: as in TRL: functions, reward models or their ids; also names of registered rewards, such as
            `"countdown"`, and what `grpo_ext.build` returns.
        args (`GRPOExtConfig`, *optional*): a plain `GRPOConfig` is taken, too, with our options at their defaults.
        **kwargs: all other arguments of `GRPOTrainer`.

    Raises:
        RuntimeError: if the installed TRL is not one that this package fits.
        RewardFailure: from `train()`, after saving a checkpoint, if a reward fails too often.
        EngineFailure: likewise, if a vLLM server does not come back, or the engine has other weights than the trainer.
        NonFiniteSteps: likewise, if more than `max_skipped_steps` steps in a row have no finite gradient.
        Interrupted: likewise, if SIGTERM, SIGUSR1 or Ctrl-C asked for it; a script that does not catch it ends with code 75.
    """

    _tag_names: ClassVar[list[str]] = ["trl", "grpo", "grpo_ext"]

    def __init__(
        self, model: Any, reward_funcs: Any = None, args: GRPOConfig | None = None, *rest: Any, **kwargs: Any
    ):
        check_contract()
        rewards = guarded_rewards(
            reward_funcs,
            on_error=option(args, "reward_on_error"),
            max_failure_rate=option(args, "reward_max_failure_rate"),
            timeout=option(args, "reward_timeout"),
            pool=reward_pool(option(args, "reward_workers"), option(args, "reward_timeout")),
        )
        self._failed_rows: dict[str, int] = {}
        self.eval_decoding = decoding_of(args)
        monitored = chosen_rules(option(args, "health_rules"), option(args, "health_action"))
        with our_engine(args):
            super().__init__(model, rewards, args, *rest, **kwargs)
        outcome = outcome_of(self)
        rewards = describe_rewards(self.reward_funcs, self.reward_func_names, self.reward_weights.tolist())
        about = {"rewards": rewards, "outcome": outcome}
        log = RunLog(option(args, "log_samples"), option(args, "log_max_mb"), about)
        self.add_callback(log)
        if monitored:
            self.monitor = HealthMonitor(monitored, log)
            self.add_callback(self.monitor)
        self.add_callback(EndOfStep(self, log))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As in TRL; where a reward or the engine fails, the run ends with a checkpoint and its error."""
        try:
            return super().train(*args, **kwargs)
        except (RewardFailure, EngineFailure):
            self.save_failure()
            raise

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._failed_rows = settle_failures(self.reward_funcs, gather_object)
        group = self.num_generations if self.model.training else self.num_generations_eval
        return self.keep_rewards(fill_unscored(rewards_per_func, group))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in TRL, with `rewards/NAME/failed`, the rows that a reward failed on since the start, where there are any."""
        logs.update({f"rewards/{name}/failed": count for name, count in self._failed_rows.items()})
        super().log(logs, start_time)

    def evaluate(
        self,
        eval_dataset: Dataset | IterableDataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate, by TRL or, where `eval_temperature` is set, by decoding at that temperature without touching training.

        Returns:
            Means over all completions, such as `eval_countdown` and `eval_length`, and `eval_pass@1`, `eval_pass@8`, ... of
            the reward that decides; under `eval_NAME_...` where `eval_dataset` is a mapping of named data sets.
        """
        if self.eval_decoding is None:
            self._eval_name = metric_key_prefix.removeprefix("eval_")
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        return evaluate_policy(self, eval_dataset, metric_key_prefix)

    def log_evaluation(self, metrics: dict[str, float]) -> None:
        """Log the metrics of one evaluation, and nothing else.

        TRL's own `log` would flush the training metrics collected so far into them, and write the training completions of
        this step a second time.
        """
        super(GRPOTrainer, self).log(metrics)


def option(args: GRPOConfig | None, name: str) -> Any:
    """The value of one of our options; its default where `args` is a plain `GRPOConfig` or `None`."""
    return getattr(args, name, getattr(GRPOExtConfig, name))
