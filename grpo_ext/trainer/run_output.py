"""Print the first and last lines of a run, and write its `recipe.yaml` and model card."""

import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel, PeftType
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import grpo_ext.trainer.settings as settings
from grpo_ext.common.devices import how_threads_wait, settings_here
from grpo_ext.common.files import write_atomically
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.environments.turn_tokens import trained_turns
from grpo_ext.evaluation.constant import constant_sentences
from grpo_ext.evaluation.model_card import add_to_card
from grpo_ext.evaluation.table import Gain, draw_curves, gained
from grpo_ext.recipe.arguments import argument_values
from grpo_ext.recipe.difference import SAVED, as_yaml
from grpo_ext.tasks.sharegpt import is_sharegpt
from grpo_ext.trainer.evaluation import outcomes_of
from grpo_ext.trainer.judging import rewards_of
from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)
# Arguments that TRL and transformers set themselves.
DERIVED = (
    "accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs",
    "dataloader_pin_memory", "debug", "disable_tqdm", "generation_batch_size",
    "pad_to_multiple_of",
)  # fmt: skip
# Arguments that are always shown, even if they have their defaults.
SHOWN = ("learning_rate", "per_device_train_batch_size", "steps_per_generation", "num_generations")


class RunOutput(TrainerCallback):
    """Callback that writes `recipe.yaml` when a run starts, and reports its results when it ends.

    `recipe` holds the values to write to `recipe.yaml`; if it is `None`, they are taken from the
    trainer's model, arguments and rewards.
    """

    def __init__(self, trainer: Trainer, recipe: Mapping[str, Any] | None):
        self.trainer = trainer
        self.from_python = recipe is None
        self.recipe = as_given(trainer) if recipe is None else recipe

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write `recipe.yaml`, and print a notice if the run has already finished."""
        if not state.is_world_process_zero:
            return
        write_atomically(Path(self.trainer.args.output_dir) / SAVED, as_yaml(self.recipe))
        if state.global_step >= state.max_steps:
            print(
                f"This run has already finished ({state.global_step} of {state.max_steps} steps), "
                "so there is nothing to train. For a longer run, raise max_steps or "
                "num_train_epochs; for a new one, set `resume: never` (in Python, omit "
                "resume_from_checkpoint) or another output_dir."
            )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the curves, write the model card, and print gains and remarks.

        For a run started from Python, also suggest a next command. If the curves or the model card
        cannot be written, a warning is logged. Nothing is done if the run stopped before its last
        step.
        """
        if not state.is_world_process_zero or state.global_step < state.max_steps:
            return
        try:
            folder = Path(self.trainer.args.output_dir)
            draw_curves(folder)
            self.trainer.create_model_card(
                model_name=(args.hub_model_id or folder.name).split("/")[-1]
            )
        except OSError as error:
            logger.warning(
                f"The curves or the model card could not be written ({error}). The model is not "
                "affected."
            )
        for gain in self.gains():
            verdict = f" ({gain.verdict})" if gain.verdict else ""
            print(f"{gain.name}: {gain.first} -> {gain.last}{verdict}")
        for sentence in self.sentences():
            print(sentence)
        if self.from_python:
            print(f"next: grpo-ext report {shlex.quote(str(args.output_dir))}")

    def gains(self) -> list[Gain]:
        """Return the change in each reported metric from the start to the end of the run."""
        trainer = self.trainer
        history = trainer.state.log_history
        return gained(history, trainer.reward_func_names, outcomes_of(trainer))

    def sentences(self) -> list[str]:
        """Return the sentences that follow the gains at the end of a run.

        Depending on the run, they compare outcome rewards with the best constant answer, and say
        how often rewards and environments failed, and in how many steps the KL drowned out the
        rewards. If nothing was learned, the last sentences explain why.
        """
        parts = self.trainer.parts
        history = self.trainer.state.log_history
        outcomes = set(parts.constant.judges.values())
        text = parts.constant.text if len(outcomes) == 1 else None
        sentences: list[str] = []
        for outcome in sorted(outcomes):
            sentences += constant_sentences(history, outcome, text)
        sentences += parts.learning.remarks
        if parts.learning.verdict is not None:
            sentences.append(parts.learning.verdict)
        return sentences

    def add_to_card(self) -> None:
        """Add the rewards, results, recipe and a sample prompt to the model card written by TRL."""
        trainer = self.trainer
        folder = Path(trainer.args.output_dir)
        add_to_card(
            folder,
            rewards_of(trainer),
            self.gains(),
            self.recipe,
            self.sentences(),
            first_prompt(trainer.train_dataset),
        )


def first_prompt(rows: object) -> object:
    """Return the prompt in the first row of a dataset.

    The result is `None` for a stream, an empty dataset, or a row without a prompt.
    """
    if isinstance(rows, Dataset) and len(rows):
        return rows[0].get("prompt")
    return None


def columns_of(rows: object) -> list[str]:
    """Return a dataset's column names, or an empty list for `None` or a stream without any."""
    return list(getattr(rows, "column_names", None) or ())


def check_prompt(rows: object, argument: str = "train_dataset") -> None:
    """Raise `ValueError` unless `rows` is a single dataset with a usable column `prompt`.

    A mapping of splits does not pass, nor does a dataset whose first prompt is in the ShareGPT
    format. `None` and a stream without column names pass. `argument` names the dataset in the
    message.
    """
    if isinstance(rows, Mapping):
        first = "train" if "train" in rows else next(iter(rows), "train")
        raise ValueError(
            f"{argument} is of type {type(rows).__name__} and has the splits "
            f"{', '.join(map(str, rows))}: pass one of them, such as dataset[{first!r}]."
        )
    columns = columns_of(rows)
    if columns and "prompt" not in columns:
        suggestion = did_you_mean("prompt", columns)
        raise ValueError(
            f"{argument} has no column 'prompt'.{suggestion} Its columns: {', '.join(columns)}. "
            "Add the column, with strings or chat messages: "
            "rows.map(lambda row: {'prompt': [{'role': 'user', 'content': row['...']}]})."
        )
    if isinstance(rows, Dataset) and len(rows) and is_sharegpt(rows[0].get("prompt")):
        raise ValueError(
            f"The prompts of {argument} are messages with `from` and `value`, but a chat template "
            "expects `role` and `content`. Convert them: "
            "from grpo_ext.tasks.sharegpt import chat_messages; "
            "rows.map(lambda row: {'prompt': chat_messages(row['prompt'])})."
        )


def as_given(trainer: Trainer) -> dict[str, Any]:
    """Return a trainer's model, rewards and non-default arguments as the values of a recipe.

    Arguments in `SHOWN` are included even if they have their defaults. Arguments in `DERIVED`, and
    those that were adapted to this machine, are left out.
    """
    args = trainer.args
    model_name = trainer.model.config.name_or_path
    rewards = rewards_of(trainer)
    recipe: dict[str, Any] = {}
    if model_name:
        recipe["model_name_or_path"] = model_name
    if hasattr(trainer.model, "peft_config"):
        recipe["use_peft"] = True
    recipe["task"] = "prompts"
    recipe["reward_funcs"] = [reward_entry(reward) for reward in rewards]
    recipe["reward_weights"] = [reward["weight"] for reward in rewards]
    for key in SHOWN:
        recipe[key] = getattr(args, key)
    machine_settings = settings_here(None, None).items()
    for key, argument in argument_values(args, set()).items():
        if key not in DERIVED and argument != [] and (key, argument) not in machine_settings:
            recipe[key] = argument
    return recipe


def reward_entry(reward: dict[str, Any]) -> str | dict[str, Any]:
    """Convert an entry of `rewards_of` to an entry of `reward_funcs`.

    For a reward that is not registered, the entry is only its name.
    """
    if "reward" not in reward:
        return reward["name"]
    entry = {"name": reward["reward"], "label": reward["name"], **reward["options"]}
    if "tasks" in reward:
        entry["tasks"] = reward["tasks"]
    return entry


def first_lines(trainer: Trainer) -> str:
    """Describe ranks and sharding, rewards, batch, generation and training, one line for each.

    If episodes are played, another line says which of their tokens are trained on. If the trainer
    itself decided whether to use gradient checkpointing, the final line gives its decision.
    """
    args = trainer.args
    accelerator = trainer.accelerator
    ranks = accelerator.num_processes
    place = "1 rank"
    if ranks > 1:
        launcher = accelerator.distributed_type.value
        if accelerator.state.backend:
            launcher += f", {accelerator.state.backend}"
        place = f"{ranks} ranks ({launcher})"
    weighed = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    tie_break = ""
    if args.tie_break_reward is not None:
        tie_break = (
            f"; {args.tie_break_reward} breaks ties of correct completions, x "
            f"{args.tie_break_coef:g}"
        )
    threads = ""
    if accelerator.device.type == "cpu":
        threads = f" with {how_threads_wait(torch.get_num_threads())}"
    groups = args.generation_batch_size // args.num_generations
    unit = "prompts"
    if args.max_slots_per_prompt > 1:
        unit = f"slots (1 to {args.max_slots_per_prompt} per prompt)"
    generation, training = describe(trainer)
    choice = trainer.parts.checkpointing
    checkpointing = f"\n{choice}" if choice else ""
    turns = ""
    if trainer.parts.generations.begin is not None:
        turns = f"turns: {trained_turns(trainer.processing_class.chat_template)}\n"
    return (
        f"{place}, {sharding(trainer)}, on {accelerator.device.type}{threads}\n"
        f"rewards: {', '.join(f'{name} x {weight:g}' for name, weight in weighed)}{tie_break}\n"
        f"each generation: {groups} {unit} x {args.num_generations} completions of at most "
        f"{args.max_completion_length} tokens\n"
        f"generation: {generation}\n"
        f"{turns}"
        f"training: {training}{checkpointing}"
    )


def sharding(trainer: Trainer) -> str:
    """Describe which part of the model is trained, and how the model is sharded."""
    adapter = adapter_of(trainer.model)
    beside = f"{adapter}, " if adapter else ""
    if trainer.is_deepspeed_enabled:
        stage = trainer.accelerator.state.deepspeed_plugin.zero_stage
        return f"{beside}sharded by DeepSpeed ZeRO-{stage}"
    if trainer.is_fsdp_enabled:
        version = trainer.accelerator.state.fsdp_plugin.fsdp_version
        return f"{beside}sharded by FSDP{version}"
    model = adapter or "the whole model"
    if trainer.accelerator.num_processes > 1:
        return f"{model} on each"
    return model


def adapter_of(model: torch.nn.Module) -> str:
    """Describe a model's adapters and trained parameters; return `""` if it has no adapters."""
    if not isinstance(model, PeftModel):
        return ""
    kinds = {PeftType(config.peft_type).value for config in model.peft_config.values()}
    names = " and ".join(sorted(kinds)).replace("LORA", "LoRA")
    trained, total = model.get_nb_trainable_parameters()
    return f"{names}: {trained:,} of {total:,} parameters trained"


def describe(trainer: Trainer) -> tuple[str, str]:
    """Return two lines that describe how a trainer generates and how it speeds up training."""
    parts = trainer.parts
    generation = parts.sampler.describe()
    if trainer.use_transformers_continuous_batching:
        generation = "transformers' continuous batching"
    training = "as in TRL, one padded batch per micro-batch"
    if not trainer.as_trl:
        on_cpu = trainer.accelerator.device.type == "cpu"
        training = settings.how_it_trains(parts.scorer.layout, parts.cut_rule, on_cpu)
    return generation, training
