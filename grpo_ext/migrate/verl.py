"""Translate verl's settings for sizes, rows, rewards, the objective, intervals and logging."""

from __future__ import annotations

from grpo_ext.migrate.batches import Sizes, write_sizes
from grpo_ext.migrate.draft import MOST_NUMBER, Draft, Setting, shown
from grpo_ext.recipe.batch import Batch

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"
OVERLONG = "reward_model.reward_kwargs.overlong_buffer_cfg"
OVERLONG_BEFORE = "reward_model.overlong_buffer"  # in older versions
GPUS = 8  # default number of GPUs per node


def translate(draft: Draft, found: int | None, processes: int | None) -> Batch:
    """Translate the settings that need more than renaming, and return the batch sizes.

    The other settings remain in `draft.left`.

    Args:
        draft: the recipe under construction.
        found: the number of processes that a launcher starts; `None` if there is no launcher, since
            verl does not need one.
        processes: the number of processes for the recipe; if `None`, `found` or, if that is `None`
            too, the number of GPUs that train on different batches.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    draft.move("data.max_response_length", "max_completion_length")
    draft.default("max_completion_length", 512, "verl")  # for rewards with this default
    batch, sizes = write_sizes_in_prompts(draft, processes or found)
    write_rows(draft)
    write_one_reward(draft)
    write_objective(draft)
    write_intervals(draft, sizes.steps_per_generation)
    write_logging(draft)
    for key in ("config_name", "config_path", "defaults"):
        setting = draft.take(key)
        if setting is not None:
            draft.remark(
                setting, "the settings of other YAML files were not read. Add them by hand."
            )
    write_adapter(draft)
    return batch


def write_sizes_in_prompts(draft: Draft, processes: int | None) -> tuple[Batch, Sizes]:
    """Write the batch sizes and, for several processes, FSDP2 as the accelerate config.

    verl's `train_batch_size` and `ppo_mini_batch_size` are numbers of prompts, each with `n`
    completions, and `ppo_micro_batch_size_per_gpu` is a number of completions. If verl samples one
    completion per prompt, the user must set `num_generations` by hand.

    Args:
        draft: the recipe under construction.
        processes: the number of processes for the recipe; if `None`, the number of GPUs that train
            on different batches, or the next smaller number that divides a step.

    Returns:
        The batch sizes of the recipe, and verl's sizes in completions.

    Raises:
        ValueError: if a step cannot be shared equally by the processes.
    """
    shards = data_parallel(draft)
    per_prompt = draft.number(f"{ROLLOUT}.n", default=1)
    if per_prompt == 1:
        reason = "rollout.n is 1, but a group needs at least 2 completions"
        draft.missing["num_generations"] = reason
        draft.remark(None, f"Set num_generations by hand: {reason}.")
    step = draft.number(f"{ACTOR}.ppo_mini_batch_size", default=256) * per_prompt
    generation = draft.number("data.train_batch_size", default=1024) * per_prompt
    step = min(step, generation)
    sizes = Sizes(
        num_generations=per_prompt,
        step=step,
        generation=generation,
        micro_batch=micro_batch(draft, max(1, step // shards), shards),
        num_iterations=draft.number(f"{ACTOR}.ppo_epochs", default=1),
    )
    if processes is None:
        processes = shards
        while step % processes:
            processes -= 1
    strategy = draft.take(f"{ACTOR}.strategy")
    if strategy is not None and strategy.value not in ("fsdp", "fsdp2"):
        draft.remark(
            strategy,
            f"{shown(strategy.value)} is not supported. With several processes, FSDP2 shards the "
            "model instead.",
        )
    if processes > 1:
        draft.write("accelerate_config", "fsdp2", comment="verl shards the model, too")
    return write_sizes(draft, sizes, processes), sizes


def data_parallel(draft: Draft) -> int:
    """Return how many GPUs train on different batches, at most `MOST_NUMBER`.

    GPUs that split the sequences, matrices or layers of the same batch count as one.
    """
    gpus = draft.number("trainer.n_gpus_per_node", default=GPUS)
    gpus *= draft.number("trainer.nnodes", default=1)
    shared = draft.number(f"{ACTOR}.ulysses_sequence_parallel_size", default=1)
    for kind in ("tensor_model", "pipeline_model", "context"):
        shared *= draft.number(f"{ACTOR}.megatron.{kind}_parallel_size", default=1)
    return min(max(1, gpus // shared), MOST_NUMBER)


def micro_batch(draft: Draft, share: int, shards: int) -> int:
    """Return the number of completions in a micro-batch, and write verl's token limit, if any.

    With `use_dynamic_bsz`, verl limits micro-batches by tokens; the number is then `share`. It is
    also `share` if verl sets no size.

    Args:
        draft: the recipe under construction.
        share: the number of completions per step and GPU.
        shards: the number of GPUs that share a step.
    """
    size = draft.number(f"{ACTOR}.ppo_micro_batch_size_per_gpu", default=0)
    over_all = draft.number(f"{ACTOR}.ppo_micro_batch_size", default=0)
    tokens = draft.take(f"{ACTOR}.ppo_max_token_len_per_gpu")
    if draft.known(f"{ACTOR}.use_dynamic_bsz", default=False) is True:
        draft.default("max_tokens_per_micro_batch", 16384, "verl")
        if tokens is not None:
            draft.write("max_tokens_per_micro_batch", tokens.value, tokens)
        return share
    return size or over_all // shards or share


def write_rows(draft: Draft) -> None:
    """Write the first training file, the first evaluation file, and limits on the number of rows.

    If there are more files, remarks say that they were left out.
    """
    for theirs, ours in {"train_files": "dataset_name", "val_files": "eval_dataset_name"}.items():
        setting = draft.take(f"data.{theirs}")
        if setting is None:
            continue
        files = setting.value if isinstance(setting.value, list) else [setting.value]
        draft.write(ours, files[0] if files else None, setting)
        if len(files) > 1:
            draft.remark(
                setting,
                f"only the first of {len(files)} files was taken over. Put all rows into one file.",
            )
    for theirs, ours in {
        "train_max_samples": "max_train_samples",
        "val_max_samples": "max_eval_samples",
    }.items():
        number = draft.number(f"data.{theirs}", default=0)
        if number:
            draft.write(ours, number)


def write_one_reward(draft: Draft) -> None:
    """Write the reward: the user's function, or else a reward model, or else `accuracy`.

    For `accuracy`, also write `rename_columns`, and add a remark that verl chooses a reward for
    each row by its `data_source`. DAPO's penalty for long completions is added if it is enabled. If
    the path of the function or of the reward model contains variables that the file does not set,
    the user must set `reward_funcs` by hand.
    """
    path = draft.take("custom_reward_function.path")
    name = draft.known("custom_reward_function.name", default="compute_score")
    enabled = draft.known("reward_model.enable", default=False)
    model = draft.take("reward_model.model.path")
    specs: list[object] = []
    if path is not None and path.unknown is not None:
        set_reward_by_hand(draft, path, f"{path.value}:{name}")
    elif path is not None and path.value is not None:
        specs.append(f"{path.value}:{name}")
    elif enabled is True and model is not None and model.unknown is not None:
        set_reward_by_hand(draft, model, str(model.value))
    elif enabled is True and model is not None:
        specs.append(model.value)
        draft.remark(model, "the reward model must be a sequence classifier with a single label.")
    else:
        draft.write("rename_columns", {"solution": "reward_model.ground_truth"})
        specs.append("accuracy")
        draft.remark(
            None,
            "verl chooses a reward for each row by its data_source; this recipe scores all rows "
            "with accuracy, which compares answers with reward_model.ground_truth. If the answers "
            "are not numbers or formulas, set reward_funcs to another reward, or to verl's own as "
            "FILE.py:compute_score.",
        )
    penalty = overlong_penalty(draft)
    if "reward_funcs" not in draft.missing:
        draft.write("reward_funcs", [*specs, *penalty], path)
    elif penalty:
        draft.remark(None, f"also add DAPO's penalty for long completions: {shown(penalty[0])}.")
    for key in [key for key in draft.left if key.startswith("reward_model.")]:
        draft.remark(draft.take(key), "left out: reward_funcs names the rewards.", by_hand=False)


def set_reward_by_hand(draft: Draft, setting: Setting, spec: str) -> None:
    """Leave `reward_funcs` to the user, because a path contains a variable that is not set.

    Args:
        draft: the recipe under construction.
        setting: the setting with the path.
        spec: the reward, with the variable in its path.
    """
    draft.missing["reward_funcs"] = spec
    draft.remark(setting, f"the file does not set {setting.unknown}. Set reward_funcs by hand.")


def overlong_penalty(draft: Draft) -> list[dict[str, object]]:
    """Return a list with DAPO's penalty for long completions as a reward, or `[]` if it is off.

    If the buffer length or the maximum length is unknown, add a remark and return `[]`.
    """
    options = {}
    for key in ("enable", "len", "penalty_factor", "log"):
        options[key] = draft.known(f"{OVERLONG}.{key}", f"{OVERLONG_BEFORE}.{key}")
    if options["enable"] is not True:
        return []
    length = draft.values.get("max_completion_length")
    if type(options["len"]) is not int or length is None:
        draft.remark(
            None,
            "The overlong_buffer penalty was left out, because its numbers are not in the file. "
            "Add {name: soft_overlong_punishment, max_completion_len: ..., soft_punish_cache: ...} "
            "to reward_funcs.",
        )
        return []
    factor = options["penalty_factor"]
    return [
        {
            "name": "soft_overlong_punishment",
            "max_completion_len": length,
            "soft_punish_cache": options["len"],
            "weight": factor if isinstance(factor, int | float) else 1.0,
        }
    ]


def write_objective(draft: Draft) -> None:
    """Write the clip range, `delta`, `beta` and `use_bias_correction_kl`.

    `delta` is written only for the loss mode `vanilla`, which is verl's default. Without
    `use_kl_loss: true`, `beta` is 0 and `use_bias_correction_kl` is left out.
    """
    low = draft.take(f"{ACTOR}.clip_ratio_low")
    high = draft.take(f"{ACTOR}.clip_ratio_high")
    both = draft.take(f"{ACTOR}.clip_ratio")
    lower = low or both
    if lower is not None:
        draft.write("epsilon", lower.value, lower)
    if high is not None:
        draft.write("epsilon_high", high.value, high)
    mode = draft.left.get(f"{ACTOR}.policy_loss.loss_mode")
    if mode is None or mode.value == "vanilla":
        draft.move(f"{ACTOR}.clip_ratio_c", "delta")
        draft.default("delta", 3.0, "verl")
    draft.take(f"{ACTOR}.clip_ratio_c")  # the other losses do not use it
    used = draft.known(f"{ACTOR}.use_kl_loss", default=False)
    weight = draft.take(f"{ACTOR}.kl_loss_coef")
    kind = draft.take(f"{ACTOR}.kl_loss_type")
    if used is not True:
        draft.write("beta", 0.0, comment="use_kl_loss is false")
        return
    draft.write("beta", 0.001 if weight is None else weight.value, weight)
    draft.write("use_bias_correction_kl", False, comment="verl's KL is not weighted by ratios")
    if kind is not None:
        draft.left[kind.key] = kind  # left for `foreign.TRANSLATIONS`


def write_intervals(draft: Draft, steps: int) -> None:
    """Convert verl's schedule from generations to optimizer steps, and write it.

    The schedule consists of the length of the run, the warmup, and the intervals between
    checkpoints and between evaluations. A length in epochs is not converted. Without evaluations,
    the validation settings are left out. If `save_freq` turns checkpoints off, a remark says that a
    run that is stopped cannot be resumed.

    Args:
        draft: the recipe under construction.
        steps: the number of optimizer steps per generation.
    """
    comment = f"times {steps} steps per generation" if steps > 1 else ""
    total = in_steps(draft.known("trainer.total_training_steps"), steps)
    if total > 0:
        draft.write("max_steps", total, comment=comment)
        draft.take("trainer.total_epochs")  # the steps end the run
    else:
        draft.move("trainer.total_epochs", "num_train_epochs")
        draft.default("num_train_epochs", 30, "verl")
    warmup = in_steps(draft.known(f"{ACTOR}.optim.lr_warmup_steps"), steps)
    if warmup > 0:
        draft.write("warmup_steps", warmup, comment=comment)
        draft.take(f"{ACTOR}.optim.lr_warmup_steps_ratio")
    saves = draft.left.get("trainer.save_freq")
    save_steps = in_steps(draft.known("trainer.save_freq"), steps)
    if save_steps > 0:
        draft.write("save_strategy", "steps")
        draft.write("save_steps", save_steps, saves, comment)
    elif saves is not None and saves.unknown is None:
        draft.write("save_strategy", "no", saves)
        draft.remark(saves, "without checkpoints, a run that is stopped cannot be resumed.")
    tests = in_steps(draft.known("trainer.test_freq"), steps)
    before = draft.known("trainer.val_before_train", default=True)
    validation = [key for key in draft.left if key.startswith(f"{ROLLOUT}.val_kwargs.")]
    if tests > 0:
        draft.write("eval_strategy", "steps")
        draft.write("eval_steps", tests, comment=comment)
        draft.write("eval_on_start", before)
        if f"{ROLLOUT}.val_kwargs.do_sample" not in validation:
            draft.write("eval_temperature", 0.0, comment="the default of verl: greedy")
    else:
        draft.take(*validation)  # nothing is evaluated


def in_steps(generations: object, steps: int) -> int:
    """Convert a number of generations to optimizer steps, with `steps` steps per generation.

    Return 0 if `generations` is not an integer.
    """
    if type(generations) is not int:
        return 0
    return generations * steps


def write_logging(draft: Draft) -> None:
    """Write `report_to`: verl's loggers without the console, or "none" if there are no others.

    If wandb is one of them and verl's project has a name, a remark says how to set the project.
    """
    project = draft.known("trainer.project_name")
    loggers = draft.known("trainer.logger", default=["console", "wandb"])
    names = loggers if isinstance(loggers, list) else [loggers]
    chosen = [str(name) for name in names if name != "console"]
    draft.write("report_to", chosen or ["none"])
    if project is not None and "wandb" in chosen:
        draft.remark(None, f"set the environment variable WANDB_PROJECT={project}.")


def write_adapter(draft: Draft) -> None:
    """Write LoRA's keys if verl's LoRA rank is set and not 0; otherwise drop its LoRA settings."""
    rank = draft.take(f"{MODEL}.lora_rank", f"{MODEL}.lora.rank")
    if rank is None or rank.value == 0:
        for key in ("lora_alpha", "lora.alpha", "target_modules"):
            draft.take(f"{MODEL}.{key}")
        return
    draft.write("use_peft", True)
    draft.write("lora_r", rank.value, rank)
    draft.move(f"{MODEL}.lora.alpha", "lora_alpha")
    draft.move(f"{MODEL}.lora_alpha", "lora_alpha")
    draft.move(f"{MODEL}.target_modules", "lora_target_modules")
    draft.default("lora_alpha", 16, "verl")
    draft.default("lora_target_modules", ["all-linear"], "verl")
