"""Broken recipes: each is answered in seconds with the key at fault and what to write, and none
loads a model.
"""

from __future__ import annotations

import json
import socket

import pytest
import transformers
import yaml

from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from tests.support.runaway import no_runaway

SOUND = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "task": "countdown",
    "num_problems": 40,
    "max_numbers": 3,
    "max_number": 9,
    "reward_funcs": ["countdown", "format"],
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_completion_length": 32,
}
ALONE = {"use_vllm": True, "use_peft": True, "vllm_sync_adapter": "adapter"}
# what is changed, the key that must be named, and words of the way out
BROKEN = {
    "typo": ({"learning_rte": 1e-5}, "learning_rte", "'learning_rate'"),
    "typo_in_a_plural": ({"num_generation": 4}, "num_generation", "'num_generations'"),
    "typo_of_a_task_key": ({"max_numbrs": 4}, "max_numbrs", "'max_numbers'"),
    "key_of_another_task": ({"max_story_steps": 1}, "max_story_steps", "task: gsm8k"),
    "loss": ({"loss_type": "drgrpo"}, "loss_type", "'dr_grpo'"),
    "cache": ({"cache_implementation": "dinamic"}, "cache_implementation", "'dynamic'"),
    "cache_without_a_package": (
        {"cache_implementation": "quantized"},
        "cache_implementation",
        "optimum or hqq",
    ),
    "scale": ({"scale_rewards": "grp"}, "scale_rewards", "'group'"),
    "level": ({"importance_sampling_level": "tok"}, "importance_sampling_level", "'token'"),
    "task": ({"task": "countdwon"}, "task", "'countdown'"),
    "preset": ({"preset": "grpo_papr"}, "preset", "'grpo_paper'"),
    "schedule": ({"lr_scheduler_type": "cosin"}, "lr_scheduler_type", "'cosine'"),
    "schedule_of_text": ({"lr_scheduler_kwargs": "power 2"}, "lr_scheduler_kwargs", "a mapping"),
    "schedule_of_another": (
        {"lr_scheduler_kwargs": {"power": 2}},
        "lr_scheduler_kwargs",
        "'power'",
    ),
    "schedule_without_its_least": (
        {"lr_scheduler_type": "cosine_with_min_lr"},
        "lr_scheduler_type",
        "min_lr",
    ),
    "word_for_a_number": ({"num_generations": "many"}, "num_generations", "a whole number"),
    "word_for_a_rate": ({"learning_rate": "fast"}, "learning_rate", "a number"),
    "word_for_a_switch": (
        {"gradient_checkpointing": "perhaps"},
        "gradient_checkpointing",
        "true or false",
    ),
    "no_temperature": ({"temperature": 0}, "temperature", "greater than 0"),
    "no_momentum": ({"adam_beta1": 7}, "adam_beta1", "less than 1"),
    "top_p": ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
    "not_a_number": ({"learning_rate": float("nan")}, "learning_rate", "finite"),
    "group_of_one": ({"num_generations": 1}, "num_generations", "greater than or equal to 2"),
    "groups": ({"per_device_train_batch_size": 6}, "num_generations", "`num_generations: 3`"),
    "slices": (
        {"generation_batch_size": 12},
        "generation_batch_size",
        "`generation_batch_size: 16`",
    ),
    "two_sizes": (
        {"generation_batch_size": 16, "steps_per_generation": 2},
        "generation_batch_size",
        "both set. Remove one of them",
    ),
    "eval_groups": (
        {"eval_strategy": "steps", "per_device_eval_batch_size": 6},
        "per_device_eval_batch_size",
        "`per_device_eval_batch_size: 4`",
    ),
    "too_few_rows": (
        {"num_problems": 3, "gradient_accumulation_steps": 4},
        "per_device_train_batch_size",
        "at least 8",
    ),
    "weights": (
        {"reward_weights": [1.0]},
        "reward_weights",
        "The number of reward_weights (1) does not match",
    ),
    "delta": ({"delta": 1.1}, "delta", "above 1 + epsilon_high"),
    "no_reference": ({"sync_ref_model": True}, "sync_ref_model", "beta above 0"),
    "two_precisions": ({"fp16": True, "bf16": True}, "fp16", "bf16: false"),
    "two_temperatures": (
        {"temperature": 0.7, "generation_kwargs": {"temperature": 1.1}},
        "generation_kwargs",
        "Remove temperature from generation_kwargs",
    ),
    "unscorable": ({"repetition_penalty": 1.2}, "repetition_penalty", "or set `logprob_policy"),
    "no_room_for_a_prompt": (
        {"use_vllm": True, "vllm_max_model_length": 32},
        "vllm_max_model_length",
        "Raise vllm_max_model_length",
    ),
    "best_of_no_evaluation": (
        {"load_best_model_at_end": True},
        "load_best_model_at_end",
        "strategy to match",
    ),
    "adapter": (
        {"use_peft": True, "lora_target_modules": ["q_proj"]},
        "lora_target_modules",
        "'.*q_proj'",
    ),
    "sync_of_no_adapter": (
        {"use_vllm": True, "vllm_sync_adapter": "adapter"},
        "vllm_sync_adapter",
        "use_peft: true",
    ),
    "sync_of_layers": (
        {**ALONE, "lora_modules_to_save": ["lm_head"]},
        "lora_modules_to_save",
        "merged",
    ),
    "sync_of_a_head": (
        {**ALONE, "lora_target_modules": ["q_proj", "lm_head"]},
        "lora_target_modules",
        "Remove lm_head",
    ),
    "sync_of_a_great_rank": ({**ALONE, "lora_r": 513}, "lora_r", "at most rank 512"),
    "sync_of_a_sharded_adapter": (
        {**ALONE, "accelerate_config": "zero3"},
        "accelerate_config",
        "Set `accelerate_config: ddp` or `accelerate_config: zero2`",
    ),
    "sync_to_a_sleeper": (
        {**ALONE, "vllm_enable_sleep_mode": True},
        "vllm_enable_sleep_mode",
        "loses its base",
    ),
    "no_steps": ({"max_steps": 0}, "max_steps", "above 0"),
    "endless_stream": ({"dataset_streaming": True}, "dataset_streaming", "Set max_steps"),
    "shrinking_batch": ({"auto_find_batch_size": True}, "auto_find_batch_size", "Remove auto_find"),
    "head_of_tied_embeddings": (
        {"use_peft": True, "cast_lm_head_to_fp32": True},
        "cast_lm_head_to_fp32",
        "Set `cast_lm_head_to_fp32: false`",
    ),
    "some_checkpointed_layers": (
        {"gradient_checkpointing_kwargs": {"every_n_layers": 2, "use_reentrant": False}},
        "gradient_checkpointing_kwargs",
        "Remove every_n_layers",
    ),
    "offloaded_checkpoints": (
        {"activation_checkpointing_kwargs": {"offload": True}},
        "activation_checkpointing_kwargs",
        "Remove offload",
    ),
    "upload_of_nothing": (
        {"log_completions_hub_repo": "a/b"},
        "log_completions_hub_repo",
        "Enable log_completions",
    ),
    "truncation_without_a_cap": (
        {
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": None,
        },
        "vllm_importance_sampling_clip_max",
        "must be set",
    ),
    "unknown_reward": ({"reward_funcs": ["countdwn"]}, "reward_funcs", "'countdown'"),
    "unknown_option": (
        {"reward_funcs": [{"name": "format", "mod": "strict"}]},
        "reward_funcs",
        "'mode'",
    ),
    "reward_plugin": ({"reward_plugins": ["nowhere.py"]}, "reward_funcs", "nowhere.py"),
    "missing_column": (
        {"dataset_name": "right.jsonl", "reward_funcs": ["accuracy"]},
        "reward_funcs",
        "Its columns",
    ),
    "data_of_another_task": (
        {"dataset_name": "other.jsonl"},
        "dataset_name",
        "reads the column 'nums'",
    ),
    "no_such_data": ({"dataset_name": "nowhere.jsonl"}, "dataset_name", "no data file"),
    "empty_data": ({"dataset_name": "empty.jsonl"}, "dataset_name", "no row"),
    "no_held_out_rows": (
        {"dataset_name": "right.jsonl", "eval_strategy": "steps"},
        "eval_strategy",
        "set held_out_share",
    ),
    "no_such_held_out_rows": (
        {"eval_dataset_name": "nowhere.jsonl", "eval_strategy": "steps"},
        "eval_dataset_name",
        "no data file",
    ),
    "no_such_model": ({"model_name_or_path": "./nowhere"}, "model_name_or_path", "does not exist"),
    "no_tokenizer": ({"model_name_or_path": "."}, "model_name_or_path", "tokenizer"),
    "no_room_for_a_completion": (
        {"max_completion_length": 2040},
        "max_completion_length",
        "Lower max_completion_length",
    ),
    "reward_that_raises": (
        {"reward_funcs": ["raises.py:raises"]},
        "reward_funcs",
        "ZeroDivisionError",
    ),
    "reward_of_the_wrong_length": (
        {"reward_funcs": ["raises.py:short"]},
        "reward_funcs",
        "fails on every completion",
    ),
    "unreachable_server": (
        {"use_vllm": True, "vllm_mode": "server"},
        "vllm_server_port",
        "grpo-ext serve",
    ),
    "launcher": ({"accelerate_config": "zero9"}, "accelerate_config", "zero3"),
    "tracker": ({"report_to": "wandbb"}, "report_to", "'wandb'"),
    "task_out_of_range": ({"max_target": 0}, None, "at least 1"),
    "template": ({"user_prompt": "Make {target}."}, None, "nums"),
    "held_out_rows_without_a_name": (
        {"dataset_name": "right.jsonl", "eval_strategy": "steps", "eval_dataset_name": ""},
        "eval_dataset_name",
        "remove the key",
    ),
    "misspelt_data": (
        {"dataset_name": "rihgt.jsonl"},
        "dataset_name",
        "Did you mean 'right.jsonl'?",
    ),
    "data_that_is_nowhere": (
        {"dataset_name": "no/such"},
        "dataset_name",
        "asking the hub for it failed",
    ),
    "misspelt_model": (
        {"model_name_or_path": "wram"},
        "model_name_or_path",
        "Did you mean 'warm'?",
    ),
    "plugin_that_exits": (
        {"reward_plugins": ["exits.py"]},
        "reward_funcs",
        "exits with 0 when it is imported",
    ),
    "task_that_exits": ({"task": "exits:Task"}, "task", "exits with 0 when it is imported"),
    "label": (
        {"reward_funcs": [{"name": "format", "label": 3}]},
        "reward_funcs",
        "must be a string; got 3",
    ),
    "launcher_of_no_mapping": (
        {"accelerate_config": "list.yaml"},
        "accelerate_config",
        "lines of `key: value`",
    ),
    "launcher_of_words": ({"accelerate_config": "words.yaml"}, "accelerate_config", "whole number"),
    "launcher_of_unknown_keys": (
        {"accelerate_config": "keys.yaml"},
        "accelerate_config",
        "num_proceses",
    ),
    "no_difficulty": (
        {"curriculum": "easy_to_hard", "difficulty_column": "numz"},
        "difficulty_column",
        "Did you mean 'nums'?",
    ),
    "difficulty_of_lists": (
        {"curriculum": "easy_to_hard", "difficulty_column": "nums"},
        "difficulty_column",
        "must have a number in each row",
    ),
    "upload_without_login": ({"push_to_hub": True}, "push_to_hub", "hf auth login"),
    "output_in_a_file": ({"output_dir": "right.jsonl/run"}, "output_dir", "is not a folder"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "right.jsonl").write_text('{"nums": [1, 2, 3], "target": 6}\n' * 40)
    (tmp_path / "other.jsonl").write_text('{"question": "1+1?", "answer": "2"}\n' * 40)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "raises.py").write_text(
        "def raises(completions, **kwargs):\n    return [1 / 0 for _ in completions]\n\n\n"
        "def short(completions, **kwargs):\n    return []\n"
    )
    (tmp_path / "null.jsonl").write_text('{"prompt": "1+1?"}\n' * 39 + '{"prompt": null}\n')
    (tmp_path / "blank.jsonl").write_text('{"prompt": [{"role": "user", "content": ""}]}\n' * 40)
    (tmp_path / "exits.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "warm").mkdir()
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "words.yaml").write_text("num_processes: many\n")
    (tmp_path / "keys.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_proceses: 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "grpo_ext.preflight.first_rows.PATIENCE", 60.0
    )  # a busy machine is no fault of the data
    return tmp_path


@pytest.fixture
def no_model(monkeypatch):
    """Loading a model, or making one, is an error."""

    def refuse(*args, **kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", refuse)
    monkeypatch.setattr(transformers.PreTrainedModel, "__init__", refuse)


def written(folder, tiny_folder, changes):
    with socket.socket() as server:  # a port where nothing listens
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    values = {
        "model_name_or_path": str(tiny_folder),
        "output_dir": "out",
        "vllm_server_port": port,
        **SOUND,
        **changes,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def test_there_are_forty():
    assert len(BROKEN) >= 40


def test_the_recipe_that_is_broken_is_sound(folder, tiny_folder, no_model):
    findings = check_recipe(written(folder, tiny_folder, {"vllm_server_port": 8000}))
    assert findings.sound, findings.problems
    assert findings.figures["prompts"]["rows"] == 40
    assert findings.figures["rewards"]["scores"]["format"] == [0.0, 0.0, 1.0]


def test_a_recipe_in_python_may_leave_out_the_output_dir(folder, tiny_folder, no_model):
    findings = check_recipe(None, {**SOUND, "model_name_or_path": str(tiny_folder)})
    assert findings.sound, findings.problems
    assert findings.figures["disk"]["free"] > 0


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_named_with_a_way_out(folder, tiny_folder, no_model, name):
    changes, key, words = BROKEN[name]
    path = written(folder, tiny_folder, changes)
    with no_runaway():
        findings = check_recipe(path)
    named = [
        problem for problem in findings.problems if problem.key == key and words in problem.message
    ]
    assert named, findings.problems
    assert key is None or named[0].place.startswith(f"{path}:")


def test_the_command_answers_in_words(folder, tiny_folder, capsys):
    path = written(folder, tiny_folder, {"learning_rte": 1, "vllm_server_port": 8000})
    assert main(["check", "--config", str(path)]) == 1
    printed, errors = capsys.readouterr()
    assert "unknown key 'learning_rte'. Did you mean 'learning_rate'?" in printed
    assert printed.strip().endswith("1 problem") and errors == ""


@pytest.mark.parametrize(
    "name, key, words", [("null", "dataset_name", "is null"), ("blank", "task", "not be empty")]
)
def test_prompts_that_say_nothing_are_a_problem(folder, tiny_folder, name, key, words):
    recipe = {k: v for k, v in SOUND.items() if not k.startswith(("max_num", "num_prob"))}
    recipe |= {
        "task": "prompts",
        "reward_funcs": ["format"],
        "dataset_name": f"{name}.jsonl",
        "output_dir": "out",
    }
    findings = check_recipe(None, {**recipe, "model_name_or_path": str(tiny_folder)})
    assert [problem.key for problem in findings.problems] == [key] and words in findings.problems[
        0
    ].message


def test_json_has_it_all(folder, tiny_folder, capsys):
    path = written(folder, tiny_folder, {"vllm_server_port": 8000})
    assert main(["check", "--config", str(path), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert findings["sound"] is True and findings["problems"] == []
    assert findings["prompts"]["first"].startswith("<|im_start|>system")
    assert findings["batch"] == {"prompts": 2, "completions": 8, "step": 8}
    assert main(["check", "--config", str(path), "--json", "--loss_type", "x"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"][0]["key"] == "loss_type"


def test_what_depends_on_nothing_wrong_is_looked_at_all_the_same(folder, tiny_folder):
    """A batch that does not fit, a reward that does not exist, no server: all are told at once."""
    changes = {
        "per_device_train_batch_size": 6,
        "reward_funcs": ["raises.py:raises"],
        "report_to": "wandbb",
    }
    findings = check_recipe(written(folder, tiny_folder, changes))
    assert [problem.key for problem in findings.problems] == [
        "num_generations",
        "reward_funcs",
        "report_to",
    ]
    assert findings.figures["prompts"]["rows"] == 40 and "batch" not in findings.figures


def test_weights_that_do_not_match_are_told_once(folder, tiny_folder):
    changes = {"reward_funcs": ["countdown"], "reward_weights": [1.0, 2.0]}
    report = check_recipe(written(folder, tiny_folder, changes))
    assert [problem.message for problem in report.problems] == [
        "The number of reward_weights (2) does not match the number of rewards (1). "
        "Set one weight for each reward."
    ]


def test_an_empty_recipe_lacks_a_model(folder):
    (folder / "empty.yaml").touch()
    findings = check_recipe(folder / "empty.yaml")
    assert "model_name_or_path" in [problem.key for problem in findings.problems]


def test_elsewhere_leaves_this_machine_out(folder, tiny_folder):
    path = written(folder, tiny_folder, {"use_vllm": True, "vllm_mode": "server"})
    assert not check_recipe(path).sound
    assert check_recipe(path, elsewhere=True).sound


def test_a_preflight_fault_stops_the_trainer_before_a_model_is_loaded(
    folder, tiny_folder, no_model
):
    from grpo_ext import RecipeError, load_recipe
    from grpo_ext.train import make_trainer

    for name in (
        "too_few_rows",
        "missing_column",
        "reward_that_raises",
        "no_room_for_a_completion",
    ):
        changes, key, words = BROKEN[name]
        with pytest.raises(RecipeError) as error:
            make_trainer(load_recipe(written(folder, tiny_folder, changes)))
        assert [p for p in error.value.problems if p.key == key and words in p.message]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_trainer_of_no_rows_says_so(folder, tiny_folder, no_model, streaming):
    from grpo_ext import load_recipe
    from grpo_ext.train import make_trainer

    changes = {"dataset_name": "empty.jsonl", "dataset_streaming": streaming, "max_steps": 2}
    with pytest.raises((ValueError, OSError), match="no row"):
        make_trainer(load_recipe(written(folder, tiny_folder, changes)))
