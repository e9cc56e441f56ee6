"""`GRPOExtTrainer`, which overrides methods of `GRPOTrainer` and delegates to its parts.

With `loss_normalization: micro_batch` (`preset: trl`), TRL generates and computes the loss; the
methods below then take the branch `self.as_trl`.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from trl import GRPOConfig, GRPOTrainer

from grpo_ext.curriculum.sampler import PromptSampler
from grpo_ext.determinism.mode import deterministic_algorithms
from grpo_ext.environments.open_environments import close_all
from grpo_ext.observe.progress import show_progress
from grpo_ext.rewards.scores import UserCodeFailure
from grpo_ext.samplers.base import Sampler
from grpo_ext.samplers.choose import our_vllm
from grpo_ext.samplers.port import CheckedArguments
from grpo_ext.seams.contract import check_contract
from grpo_ext.seams.generate import fast_generation
from grpo_ext.seams.trl import counted_step_time, mean_loss, whole_table
from grpo_ext.step.records import MicroBatch, Scored
from grpo_ext.trainer.assembly import Parts
from grpo_ext.trainer.evaluation import decoding_of, evaluate_policy, name_evaluation
from grpo_ext.trainer.judging import exact_weights, rewards_for
from grpo_ext.trainer.run_output import check_prompt, first_lines
from grpo_ext.trainer.settings import checked_arguments
from grpo_ext.trainer.start_checks import check_metric_of_call
from grpo_ext.vllm import EngineFailure


class GRPOExtTrainer(GRPOTrainer):
    """Drop-in replacement for `GRPOTrainer`: all arguments of TRL's class work unchanged.

    Args:
        model: a model, or the id or path of one, as in TRL.
        reward_funcs: functions, and reward models or the models' ids, as in TRL. Names of
            registered rewards, such as `"countdown"`, and rewards that `grpo_ext.build` returns
            also work.
        args (`GRPOExtConfig`, *optional*): the training arguments. A plain `GRPOConfig` also works;
            fields that it lacks get this package's defaults.
        sampler (`Sampler`, *optional*): the sampler that completes the prompts, instead of
            transformers or vLLM.
        recipe (`Mapping`, *optional*): the values to write to `recipe.yaml`, instead of the
            trainer's arguments.
        optimizer_cls_and_kwargs (`tuple`, *optional*): the optimizer's class and its arguments, as
            in transformers.
        **kwargs: all other arguments of `GRPOTrainer`.

    Raises:
        ValueError: if a reward is unknown, the dataset lacks a column, or arguments contradict each
            other.
        RuntimeError: if this package is incompatible with the installed TRL.
        CannotLearn: a `ValueError`, if the metric for the best model is not logged, says nothing
            about the policy, or is a reward that would be minimized. Before the first generation,
            `train()` repeats this check, and also raises the error if the run would change no
            weight of the policy.
        CheckpointMismatch: a `ValueError` from `train()`, if the run cannot resume from the
            checkpoint.
        RewardFailure: from `train()`, after saving a checkpoint, if a reward fails too often.
        EnvironmentFailure: from `train()`, after saving a checkpoint, if the environment fails too
            often.
        EngineFailure: from `train()`, after saving a checkpoint, if a vLLM server fails and does
            not recover, or the engine's weights differ from the trainer's.
        NonFiniteSteps: from `train()`, after saving a checkpoint, if more than `max_skipped_steps`
            steps in a row have no finite gradient. If DeepSpeed has taken such a step, no
            checkpoint is saved.
        Interrupted: from `train()`, after saving a checkpoint, on SIGTERM, SIGUSR1 or Ctrl-C. A
            script that does not catch it ends with exit code 75.
    """

    _tag_names = ["trl", "grpo", "grpo_ext"]  # noqa: RUF012  as in TRL
    parts: Parts
    # narrower than TRL's annotations: the types that these have once `__init__` has run
    args: CheckedArguments
    model: PreTrainedModel
    processing_class: PreTrainedTokenizerBase | ProcessorMixin
    num_generations: int
    num_generations_eval: int
    max_completion_length: int
    shuffle_dataset: bool
    chat_template_kwargs: dict[str, Any]

    def __init__(
        self,
        model: str | PreTrainedModel,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        *rest: Any,
        sampler: Sampler | None = None,
        recipe: Mapping[str, Any] | None = None,
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        **kwargs: Any,
    ):
        check_contract()
        args = checked_arguments(
            args, model, sampler, kwargs.get("rollout_func"), from_python=recipe is None
        )
        if not kwargs.get("environment_factory"):  # its `reset` may return the prompt
            check_prompt(train_dataset)
        self.as_trl = args.loss_normalization == "micro_batch"
        self.eval_decoding = decoding_of(args)
        rewards = rewards_for(reward_funcs, args, model, train_dataset)
        check_metric_of_call(model, rewards, args, train_dataset, *rest, **kwargs)
        with our_vllm(args):
            super().__init__(model, rewards, args, train_dataset, *rest, **kwargs)
        # TRL's constructor does not accept it
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.reward_weights = exact_weights(self)
        self.parts = Parts(self, sampler, recipe)
        show_progress(self)
        self.parts.watch(self)

    # ---- a run

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Like TRL's `train`, but resume exactly, and stop with a checkpoint if something fails.

        With `resume_from_checkpoint=True`, the run resumes from the newest complete checkpoint in
        `output_dir`, or starts from scratch if there is none. If a reward, an environment or the
        sampler's engine fails, a checkpoint is saved before the error is raised. See the class for
        a list of the errors.
        """
        train = super().train
        self.accelerator.print(first_lines(self))
        algorithms = deterministic_algorithms() if self.args.deterministic else nullcontext()
        try:
            with algorithms:
                return self.parts.stopping.train(
                    lambda checkpoint: train(checkpoint, *args, **kwargs), resume_from_checkpoint
                )
        except (UserCodeFailure, EngineFailure):
            self.parts.checkpoints.save_failure()
            raise
        finally:
            self.parts.generations.ahead.stop()
            close_all()

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Like transformers' method, but train no further if the last step was already taken.

        transformers would take one more step after resuming from the checkpoint of the last step.
        """
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def _get_train_sampler(self, dataset: Dataset | None = None) -> PromptSampler:
        return self.parts.order.make_sampler(dataset)

    # ---- an optimizer step

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        batches, num_items = super().get_batch_samples(
            self.parts.feed.batches.of(epoch_iterator), num_batches, device
        )
        self.parts.feed.begin_step(batches)
        return batches, num_items

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        loss: Any = 0.0
        uncounted_step = super(GRPOTrainer, self).training_step  # TRL's own counts micro-batches
        with self.parts.phases("train"):
            if self.args.max_tokens_per_micro_batch:
                self.model.train()
                with counted_step_time(self):
                    for _ in range(self.parts.feed.surplus(inputs)):
                        with self.accelerator.no_sync(model):
                            loss = loss + uncounted_step(model, inputs, num_items_in_batch)
            return loss + super().training_step(model, inputs, num_items_in_batch)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if self.as_trl:
            return super()._prepare_inputs(generation_batch)
        if self.model.training:
            return self.parts.feed.next(generation_batch)
        return self.parts.update.whole_batch(self._generate_and_score_completions(generation_batch))

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> Any:
        with ExitStack() as contexts:
            if self.args.fast_generate and not self.use_vllm:
                model = self.accelerator.unwrap_model(self.model_wrapped)
                contexts.enter_context(fast_generation(model))
            if not self.as_trl:
                return self.parts.rollout(inputs)
            num_rows = len(inputs) * self.accelerator.num_processes
            contexts.enter_context(whole_table(self, num_rows))
            table = super()._generate_and_score_completions(inputs)
            return self.parts.rollout.watch_trl(inputs, table)

    def _compute_loss(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        if isinstance(inputs, MicroBatch):
            accumulation = self.current_gradient_accumulation_steps if self.model.training else 1
            loss = self.parts.update.loss(model, inputs, accumulation)
        else:
            loss = super()._compute_loss(model, inputs)
        self.parts.finite.after(loss)
        return loss

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        self.parts.finite.check(model, norm)
        return norm

    # ---- logs, evaluation, checkpoints

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Like TRL's `log`, but with more metrics, which are added to `logs` in place.

        These are reward failures and skipped steps; in training, time, throughput, memory and the
        hours left; in TRL's evaluation, the scores of the best constant answer. If TRL evaluates
        one of several datasets, the dataset's name is added to the names of the metrics.
        `train_loss` is replaced by the mean over all steps of the run, including those before the
        run was resumed.
        """
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self)
        for name, count in self.parts.judge.failed.items():
            logs[f"rewards/{name}/failed"] = count
        if self.parts.finite.skipped:
            logs["skipped_steps"] = self.parts.finite.skipped
        if self.model.training or "train_loss" in logs:
            logs.update(self.parts.phases.figures())
            if "train_loss" not in logs:  # the run is over
                logs.update(self.parts.time_left.figures())
        else:
            logs.update(self.parts.constant.collected_figures())
        if not self.model.training and "train_loss" not in logs:
            name_evaluation(self, logs)
        super().log(logs, start_time)

    def log_evaluation(self, metrics: dict[str, float]) -> None:
        """Log only the metrics of one evaluation, and call the callbacks' `on_evaluate`.

        TRL's `log` would add the training metrics collected so far, and write the training
        completions of this step again.
        """
        super(GRPOTrainer, self).log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )

    def evaluate(
        self,
        eval_dataset: str | Dataset | IterableDataset | dict[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Evaluate with the model's `generate` if `eval_temperature` is set, otherwise with TRL.

        With `eval_temperature`, evaluations do not affect training. TRL's evaluation draws from the
        same RNG as training.

        Args:
            eval_dataset: a dataset, a mapping of named datasets, or the name of one of the
                trainer's held-out datasets; `None` for all of them.
            ignore_keys: as in transformers; not used with `eval_temperature`.
            metric_key_prefix: the prefix of the metric names, without the `_` that follows it.

        Returns:
            TRL's metrics or, with `eval_temperature`, means over completions, such as
            `eval_countdown` and `eval_length`, and for the outcome reward `eval_pass@1` and
            related metrics. For a mapping of datasets, the metric names start with `eval_NAME_`.

        Raises:
            ValueError: with `eval_temperature`, if `eval_dataset` is an unknown name, there is no
                dataset, or a dataset has no rows.
            RewardFailure, EnvironmentFailure: if a reward or an environment fails too often.
            EngineFailure: without `eval_temperature`, if the engine fails.
        """
        with self.parts.phases("evaluation"):
            if self.eval_decoding is not None:
                return evaluate_policy(self, self.eval_decoding, eval_dataset, metric_key_prefix)
            self.parts.samples.eval_name = metric_key_prefix.removeprefix("eval_")
            by_trl: Any = super().evaluate  # accepts a dataset's name, which its annotation omits
            return by_trl(eval_dataset, ignore_keys, metric_key_prefix)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        save = super()._save_checkpoint
        with self.parts.phases("checkpoint"):
            self.parts.generations.ahead.wait()
            self.parts.checkpoints.save(lambda: save(model, trial))

    def save_checkpoint(self) -> None:
        """Save a checkpoint now. All ranks must call this method."""
        self._save_checkpoint(self.model, trial=None)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Like TRL's method, but with rewards, gains, curves and the recipe."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            self.parts.output.add_to_card()

    def newest_checkpoint(self) -> str | None:
        """Return the folder of the newest complete checkpoint in `output_dir`, or `None`.

        The result is `None` if there is no complete checkpoint. All ranks must call this method.
        """
        return self.parts.checkpoints.newest()

    @property
    def sampler(self) -> Sampler:
        """The sampler that completes the prompts in training."""
        return self.parts.sampler

    @property
    def generation(self) -> list[Scored] | None:
        """The current training completions, in slices; `None` before the first generation."""
        return self.parts.feed.generation

    @property
    def stopped_by(self) -> str | None:
        """The message of the alarm that stopped the run, or `None` if no alarm stopped it."""
        return self.parts.monitor.stopped_by if self.parts.monitor else None

    @property
    def learned_nothing(self) -> str | None:
        """Why the run learned nothing; `None` if it learned something or has not ended yet."""
        return self.parts.learning.verdict

    @property
    def save_error(self) -> str | None:
        """Why saving the last checkpoint failed; `None` if it succeeded or no save was due yet."""
        return self.parts.checkpoints.error
