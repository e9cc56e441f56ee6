"""Keys of other tools: whose key it is and what to write, or nothing; never a key that only looks
alike.
"""

from __future__ import annotations

import re

import pytest

from grpo_ext import RecipeError, load_recipe
from grpo_ext.recipe.foreign import FOREIGN, unknown_key
from grpo_ext.recipe.load import load_sft_recipe

# Keys of public configurations of TRL, accelerate, open-r1, ms-swift, verl, OpenRLHF, Unsloth,
# Axolotl and LLaMA-Factory.
_OTHERS = """
num_processes num_machines deepspeed_config mixed_precision wandb_entity wandb_run_group
wandb_project hub_model_revision push_to_hub_revision chat_template remote_gen_model_url
remote_gen_model_port dataset_mixture dataset_mixer dataset_configs dataset_splits
tokenizer_name_or_path tokenizer_name preprocessing_num_workers max_new_tokens max_seq_length
max_prompt_length tools environment_factory rollout_func processing_class peft_config
target_modules val_dataset split_dataset_ratio attn_impl external_plugins system
multi_turn_scheduler max_turns vllm_max_model_len async_generate actor_rollout_ref algorithm data
trainer adv_estimator norm_adv_by_std_in_grpo loss_agg_mode clip_ratio clip_ratio_low
clip_ratio_high entropy_coeff use_kl_loss kl_loss_coef train_files val_files max_response_length
train_batch_size ppo_mini_batch_size ppo_epochs total_epochs test_freq save_freq val_before_train
project_name experiment_name default_local_dir n_gpus_per_node nnodes pretrain prompt_data
n_samples_per_prompt generate_max_len init_kl_coef fast_inference max_lora_rank base_model
datasets val_set_size adapter lora_target_linear sequence_len micro_batch_size num_epochs
optimizer lr_scheduler gradient_clipping flash_attention rl trl stage finetuning_type lora_target
template dataset_dir cutoff_len val_size quantization_bit flash_attn overwrite_cache plot_loss lr
batch_size per_device_batch_size reward_functions
"""
OTHERS = _OTHERS.split()
# Keys that have nothing to do with one of ours.
_OF_NOBODY = """
vllm_gpu_ratio use_soft_cache tokenizer_type kl_penalty prompt_template messages_key
reward_model_name_or_path clip_epsilon eos_token_id loss_fn fp8 tp_size
env_factory ref_model_path remote_gen_model_n_judges early_stopping num_answers
"""
OF_NOBODY = _OF_NOBODY.split()
MISSPELT = {
    "learning_rte": "learning_rate",
    "learningrate": "learning_rate",
    "num_generation": "num_generations",
    "generations": "num_generations",
    "max_completion_lenght": "max_completion_length",
    "per_device_train_batchsize": "per_device_train_batch_size",
    "gradient_acc_steps": "gradient_accumulation_steps",
    "reward_func": "reward_funcs",
    "scale_reward": "scale_rewards",
    "gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "vllm_server_url": "vllm_server_base_url",
    "report_tos": "report_to",
    "maxnumbers": "max_numbers",
    "trust_remote_cod": "trust_remote_code",
}


def told(key: str) -> str:
    with pytest.raises(RecipeError) as error:
        load_recipe(None, {"model_name_or_path": "m", key: 1})
    (problem,) = error.value.problems
    assert problem.key == key
    return problem.message


@pytest.mark.parametrize("key", OTHERS)
def test_a_key_of_another_tool_is_told_as_such(key):
    origin, instead = FOREIGN[key]
    message = told(key)
    assert re.match(rf"{key} is (a key|an argument) of {re.escape(origin)}\. ", message)
    assert instead.removeprefix("remove") in message and "Did you mean" not in message


@pytest.mark.parametrize("key", OF_NOBODY)
def test_a_key_that_resembles_none_gets_no_suggestion(key):
    assert told(key) == f"unknown key {key!r}."


@pytest.mark.parametrize("key", MISSPELT)
def test_a_misspelt_key_gets_the_right_one(key):
    assert told(key) == f"unknown key {key!r}. Did you mean {MISSPELT[key]!r}?"


def test_every_key_of_ours_without_a_letter_is_still_recognised():
    """A typo leads to the key, or to a longer or shorter sibling of it that is at least as near."""
    own = load_recipe(None, {"model_name_or_path": "m"}).flat.defaults
    missed = []
    for key in own:
        typo = key[: len(key) // 2] + key[len(key) // 2 + 1 :]
        if len(key) < 6 or typo in own or typo in FOREIGN:
            continue
        if "Did you mean" not in unknown_key(typo, own, (), True, False):
            missed.append(key)
    assert missed == []


def test_supervised_training_is_not_told_a_key_of_grpo():
    supervised = {"model_name_or_path": "m", "dataset_name": "d"}
    with pytest.raises(RecipeError, match=r"torch_dtype is a key of open-r1, ms-swift\. Use dtype"):
        load_sft_recipe(None, {**supervised, "torch_dtype": "float32"})
    with pytest.raises(RecipeError, match="unknown key 'max_response_length'"):
        load_sft_recipe(None, {**supervised, "max_response_length": 3})


def test_a_key_of_a_nested_configuration_is_told_by_its_last_part():
    assert told("actor_rollout_ref.rollout.n") == (
        "actor_rollout_ref.rollout.n is a key of verl. Use num_generations."
    )
    assert told("trainer.save_steps") == (
        "unknown key 'trainer.save_steps': a recipe is flat, so use save_steps."
    )


def test_an_argument_of_the_trainer_is_told_as_such():
    assert told("tools") == (
        "tools is an argument of GRPOTrainer. Use environment: a name with its options, "
        "or pass tools to GRPOExtTrainer in Python."
    )
