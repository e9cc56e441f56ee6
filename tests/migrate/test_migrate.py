"""`grpo-ext migrate`: recipes from settings of TRL, open-r1, ms-swift and verl, and its remarks."""

from __future__ import annotations

import json
import os
import re

import pytest
import yaml

from grpo_ext.cli.main import main
from grpo_ext.migrate.draft import recipe_hints
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.foreign import FOREIGN, TRANSLATIONS
from grpo_ext.recipe.values import convert
from tests.migrate.keys_page import PAGE, page
from tests.support.foreign_settings import OPEN_R1, SWIFT, TRL, VERL
from tests.support.logs import write_json_rows

QUESTIONS = [
    {"problem": f"{n} + 1?", "question": f"{n} + 1?", "solution": f"{n + 1}", "answer": f"{n + 1}"}
    for n in range(400)
]


def migrate(tmp_path, capsys, name, text, *options):
    """Return the recipe's values, its text, and the lines on the terminal."""
    source = tmp_path / name
    source.write_text(text, encoding="utf-8")
    output = tmp_path / "recipe.yaml"
    assert main(["migrate", str(source), "--output", str(output), *options]) == 0
    written = output.read_text(encoding="utf-8")
    return yaml.safe_load(written), written, capsys.readouterr().err


def test_a_command_of_trl(tmp_path, capsys):
    recipe, text, told = migrate(tmp_path, capsys, "run.sh", TRL)
    assert recipe["task"] == "prompts" and recipe["accelerate_config"] == "zero2"
    assert recipe["reward_funcs"] == ["accuracy", "my.rewards:brief"]
    assert recipe["reward_weights"] == [1.0, 0.5] and recipe["use_peft"] is True
    assert recipe["lora_target_modules"] == ["q_proj", "v_proj"]
    assert recipe["learning_rate"] == 1e-5
    assert "A generation: 4 prompts x 8 completions = 32 completions." in text
    assert "4 processes x 2 micro-batches x 4" in text
    assert "--num_processes 4" in told


def test_a_recipe_of_open_r1(tmp_path, capsys):
    recipe, text, told = migrate(tmp_path, capsys, "demo.yaml", OPEN_R1, "--num_processes", "7")
    assert recipe["reward_funcs"] == [
        "accuracy",
        {"name": "format", "mode": "strict"},
        {
            "name": "cosine_scaled",
            "max_len": 500,
            "min_value_wrong": 0.0,
            "max_value_wrong": -0.5,
            "min_value_correct": 0.5,
            "max_value_correct": 1.0,
        },
    ]
    assert recipe["reward_weights"] == [1.0, 0.5, 0.25]
    assert recipe["user_prompt"] == "{problem}"
    assert recipe["system_prompt"] == "Think first.\nThen answer."
    assert recipe["dtype"] == "bfloat16" and recipe["max_prompt_tokens"] == 512
    assert recipe["warmup_steps"] == 0.1 and recipe["beta"] == 0.04  # TRL 0.18's default
    assert "A generation: 32 prompts x 14 completions = 448 completions." in text
    assert "demo.yaml:7: reward_funcs: cf_code: not taken over" in told
    assert (
        "demo.yaml:10: repetition_n_grams: not taken over: no reward of this run uses it." in told
    )
    assert "demo.yaml:17: wandb_project: left out. Set the environment variable" in told
    assert "cosine_max_len: not" not in told
    for line in told.splitlines()[:-1]:  # the last names the next command
        assert f"# - {line}" in text


def test_a_script_of_ms_swift(tmp_path, capsys):
    recipe, text, told = migrate(tmp_path, capsys, "run.sh", SWIFT)
    assert recipe["dataset_name"] == "org/rows" and recipe["dataset_config"] == "main"
    assert recipe["max_train_samples"] == 1000 and recipe["random_train_samples"] is True
    assert recipe["prompt_column"] == "question"
    assert recipe["rename_columns"] == {"solution": "answer"}
    assert recipe["system_prompt"] == "Solve it."
    assert recipe["reward_funcs"] == [
        "accuracy",
        "format",
        {"name": "soft_overlong_punishment", "max_completion_len": 1024, "soft_punish_cache": 128},
    ]
    assert recipe["use_peft"] is True and recipe["lora_r"] == 16 and recipe["lora_alpha"] == 32
    assert recipe["group_filter"] == "refill" and recipe["mask_truncated_completions"] is True
    assert recipe["accelerate_config"] == "zero2" and recipe["temperature"] == 0.9
    assert (
        "16 prompts x 8 completions = 128 completions. Optimizer steps per generation: 4." in text
    )
    assert "load_from_cache_file: left out" in told


def test_a_script_of_verl(tmp_path, capsys):
    recipe, text, told = migrate(tmp_path, capsys, "run.sh", VERL)
    assert recipe["model_name_or_path"] == "org/small"
    assert recipe["dataset_name"] == "~/data/rows/train.parquet"
    assert recipe["num_generations"] == 4 and recipe["generation_batch_size"] == 256
    assert recipe["per_device_train_batch_size"] == 4
    assert recipe["gradient_accumulation_steps"] == 2
    assert recipe["max_completion_length"] == 1024 and recipe["max_prompt_tokens"] == 512
    assert recipe["learning_rate"] == 1e-6, "not the critic's"
    assert recipe["beta"] == 0.001 and recipe["kl_estimator"] == "k3"
    assert recipe["use_bias_correction_kl"] is False and recipe["delta"] == 3.0
    assert recipe["temperature"] == 0.7 and recipe["eval_temperature"] == 0.0
    assert (
        recipe["save_steps"] == 80 and recipe["eval_steps"] == 20 and recipe["warmup_steps"] == 20
    )
    assert recipe["loss_type"] == "dapo" and recipe["use_vllm"] is True
    assert (
        "64 prompts x 4 completions = 256 completions. Optimizer steps per generation: 4." in text
    )
    assert "16 prompts, 64 completions = 8 processes x 2 micro-batches x 4." in text
    assert "# run_name:   # by hand: $NAME: the file does not set $NAME" in text
    assert "the file does not set $NAME. Set run_name by hand." in told


@pytest.mark.parametrize("processes", [1, 2, 16])
def test_another_number_of_processes_keeps_step_and_generation(tmp_path, capsys, processes):
    recipe, _, _ = migrate(tmp_path, capsys, "run.sh", VERL, "--num_processes", str(processes))
    step = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    assert step * processes == 64 and recipe["generation_batch_size"] == 256
    assert recipe["per_device_train_batch_size"] == 4
    (tmp_path / "recipe.yaml").unlink()
    recipe, _, _ = migrate(tmp_path, capsys, "run.sh", TRL, "--num_processes", str(processes))
    step = recipe["per_device_train_batch_size"] * recipe["gradient_accumulation_steps"]
    assert step * processes == 32


def test_processes_that_cannot_share_a_step_are_refused(tmp_path, capsys):
    (tmp_path / "run.sh").write_text(VERL, encoding="utf-8")
    assert main(["migrate", str(tmp_path / "run.sh"), "--num_processes", "3"]) == 2
    assert "64 completions cannot be shared equally by 3 processes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, text, changes",
    [
        ("run.sh", TRL, {"reward_funcs": ["accuracy"], "reward_weights": None}),
        ("demo.yaml", OPEN_R1, {}),
        ("run.sh", SWIFT, {"dataset_config": None}),
        ("run.sh", VERL, {}),
    ],
)
def test_recipes_pass_the_check_after_the_remarks_are_followed(
    tmp_path, capsys, tiny_folder, name, text, changes
):
    rows = tmp_path / "rows.jsonl"
    prompts = [[{"role": "user", "content": row["problem"]}] for row in QUESTIONS]
    write_json_rows(
        rows,
        [
            {**row, "prompt": prompt, "reward_model": {"ground_truth": row["solution"]}}
            for row, prompt in zip(QUESTIONS, prompts, strict=True)
        ],
    )
    recipe, _, _ = migrate(tmp_path, capsys, name, text, "--num_processes", "2")
    local = {"model_name_or_path": str(tiny_folder), "dataset_name": str(rows)}
    if "eval_dataset_name" in recipe:
        local["eval_dataset_name"] = str(rows)
    local["output_dir"] = str(tmp_path / "run")
    if text == OPEN_R1:
        changes = {"num_generations": 16}  # 2 processes do not fill groups of 14
    findings = check_recipe(str(tmp_path / "recipe.yaml"), {**local, **changes}, 2, True)
    assert findings.sound, [str(problem) for problem in findings.problems]


def test_settings_of_a_config_next_to_the_script_are_read(tmp_path, capsys):
    (tmp_path / "grpo.yaml").write_text("learning_rate: 2e-6\nbeta: 0.1\n", encoding="utf-8")
    script = (
        "trl grpo --config grpo.yaml --beta 0.2 --model_name_or_path m --dataset_name d.jsonl "
        "--reward_funcs accuracy_reward\n"
    )
    recipe, _, _ = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe["learning_rate"] == 2e-6 and recipe["beta"] == 0.2


def test_a_config_elsewhere_is_not_read(tmp_path, capsys):
    (tmp_path / "secret.yaml").write_text("beta: 0.1\n", encoding="utf-8")
    folder = tmp_path / "inner"
    folder.mkdir()
    recipe, _, told = migrate(
        folder, capsys, "run.sh", "trl grpo --config ../secret.yaml --dataset_name d\n"
    )
    assert "beta" not in recipe
    assert "the settings of ../secret.yaml were not read: there is no such file" in told


def test_a_config_whose_name_is_not_known_is_said_to_be_such(tmp_path, capsys):
    _, _, told = migrate(tmp_path, capsys, "run.sh", "trl grpo --config $CONFIG --dataset_name d\n")
    assert "were not read: its name needs $CONFIG, which the script does not set" in told


def test_rewards_of_a_plugin_are_found_without_running_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin.py").write_text(
        "from swift.rewards import ORM, orms\nraise SystemExit\nclass Mine(ORM): ...\n"
        "orms['mine'] = Mine\n",
        encoding="utf-8",
    )
    script = (
        "swift rlhf --rlhf_type grpo --model m --dataset d.jsonl --external_plugins plugin.py "
        "--reward_funcs mine other\n"
    )
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe["reward_funcs"] == ["plugin.py:Mine"]
    assert "other: not taken over. Use 'plugin.py:CLASS'" in told


RUNS_A_FILE = "from pathlib import Path\nPath('was_run').touch()\n"


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.yaml", "model_name_or_path: m\nreward_plugins: [foreign.py]\n"),
        ("x.yaml", "model_name_or_path: m\nenvironment: foreign.py:Game\n"),
        ("x.yaml", "model_name_or_path: m\ntask: foreign.py:Task\n"),
        ("x.yaml", "model_name_or_path: m\ntasks: {one: {task: foreign.py:Task}}\n"),
        ("run.sh", "trl grpo --model_name_or_path m --reward_plugins foreign.py\n"),
        ("run.sh", "swift rlhf --rlhf_type grpo --model m --external_plugins foreign.py\n"),
        ("run.sh", "python -m verl.trainer.main_ppo trainer.reward_plugins=[foreign.py]\n"),
        ("run.sh", "python -m verl.trainer.main_ppo trainer.task=foreign.py:Task\n"),
    ],
)
def test_python_that_the_file_names_is_not_run(tmp_path, capsys, monkeypatch, name, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign.py").write_text(RUNS_A_FILE, encoding="utf-8")
    recipe, _, _ = migrate(tmp_path, capsys, name, text)
    assert not (tmp_path / "was_run").exists()
    assert recipe["task"] == "prompts"


def test_a_penalty_whose_limit_is_unknown_is_left_out(tmp_path, capsys):
    penalty = (
        "data.max_response_length=$MAXLEN reward_model.overlong_buffer.enable=True "
        "reward_model.overlong_buffer.len=128"
    )
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", VERL.replace("$@", penalty))
    assert recipe["reward_funcs"] == ["accuracy"]
    assert "Add {name: soft_overlong_punishment" in told


ONE_GPU = "trainer.n_gpus_per_node=1 trainer.nnodes=1 actor_rollout_ref.actor.strategy=fsdp"


@pytest.mark.parametrize(
    "text, options, config, processes",
    [
        (VERL.replace("$@", ONE_GPU), (), None, 1),
        (VERL, (), "fsdp2", 8),
        (TRL, ("--num_processes", "1"), None, 1),
        (TRL, (), "zero2", 4),
        (TRL.replace("--config_file examples/deepspeed_zero2.yaml", ""), (), None, 4),
    ],
)
def test_the_next_command_starts_the_processes_of_the_recipe(
    tmp_path, capsys, text, options, config, processes
):
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", text, *options)
    assert recipe.get("accelerate_config") == config
    stated = re.search(r"^Next: .* --num_processes (\d+)$", told, re.MULTILINE)
    started = accelerate_settings(config)["num_processes"] if config else 1
    assert processes == (started if stated is None else int(stated[1]))


def test_a_single_weight_is_a_list_of_one(tmp_path, capsys):
    command = (
        "trl grpo --model_name_or_path x/y --dataset_name a/b "
        "--reward_funcs accuracy_reward --reward_weights 0.5"
    )
    recipe, _, _ = migrate(tmp_path, capsys, "run.sh", command)
    assert recipe["reward_funcs"] == ["accuracy"] and recipe["reward_weights"] == [0.5]


def test_keys_without_a_value_count_as_unset(tmp_path, capsys):
    text = "model: x/y\ndataset: a/b\nreward_funcs: [accuracy]\nrlhf_type:\nexternal_plugins:\n"
    recipe, _, _ = migrate(tmp_path, capsys, "swift.yaml", text)
    assert recipe["reward_funcs"] == ["accuracy"]


def test_groups_of_one_and_other_strategies_are_named(tmp_path, capsys):
    changes = "actor_rollout_ref.rollout.n=1 actor_rollout_ref.actor.strategy=megatron"
    _, _, told = migrate(tmp_path, capsys, "run.sh", VERL.replace("$@", changes))
    assert "Set num_generations by hand" in told
    assert "actor_rollout_ref.actor.strategy: megatron is not supported" in told


def test_problems_of_the_recipe_are_remarks_on_its_keys(tmp_path, capsys):
    _, _, told = migrate(tmp_path, capsys, "demo.yaml", OPEN_R1, "--num_processes", "2")
    assert "to be solved" not in told
    assert re.search("^num_generations: ", told, re.MULTILINE), told


def test_the_command_that_trains_is_translated(tmp_path, capsys):
    script = (
        "python scripts/make_grpo_data.py --output_dir d\npip install trl grpo\n"
        "trl grpo --model_name_or_path m --dataset_name d.jsonl\n"
    )
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe["model_name_or_path"] == "m" and "output_dir" not in recipe
    assert "another training command" not in told


def test_references_in_lists_are_unknown(tmp_path, capsys):
    config = "data: {train_files: ['${data.folder}/a.parquet'], train_batch_size: 32}\n"
    recipe, text, _ = migrate(tmp_path, capsys, "verl.yaml", config)
    assert "dataset_name" not in recipe
    assert "the file does not set ${data.folder}" in text


@pytest.mark.parametrize("hub", ["hf::", "ms::", ""])
def test_a_data_set_of_ms_swift_may_name_its_hub(tmp_path, capsys, hub):
    script = f"swift rlhf --rlhf_type grpo --model m --dataset {hub}org/rows:main#1000\n"
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe["dataset_name"] == "org/rows" and recipe["dataset_config"] == "main"
    assert recipe["max_train_samples"] == 1000
    assert ("this is a ModelScope id" in told) == (hub != "hf::")


def test_a_folder_is_not_an_id_of_modelscope(tmp_path, capsys):
    script = "swift rlhf --rlhf_type grpo --model m --dataset ./rows\n"
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe["dataset_name"] == "./rows" and "ModelScope" not in told


def test_intervals_that_the_script_does_not_set_are_remarked_on(tmp_path, capsys):
    script = VERL.rstrip() + " trainer.total_training_steps=$STEPS trainer.test_freq=$FREQ\n"
    _, _, told = migrate(tmp_path, capsys, "run.sh", script)
    for key, name in (("total_training_steps", "$STEPS"), ("test_freq", "$FREQ")):
        assert f"trainer.{key}: its value needs {name}, which the file does not set." in told


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{path: org/rows, split: test}", "only the name of the first dataset was taken over"),
        ("{split: test}", "not taken over: the first dataset has no name"),
    ],
)
def test_the_rest_of_a_mixture_is_remarked_on(tmp_path, capsys, entry, words):
    config = f"model_name_or_path: m\ndataset_mixture: {{datasets: [{entry}]}}\n"
    _, text, told = migrate(tmp_path, capsys, "demo.yaml", config + OPEN_R1.split("\n", 2)[2])
    assert words in text + told


def test_a_nested_yaml_of_verl(tmp_path, capsys):
    config = """
data: {train_files: a.parquet, train_batch_size: 32}
actor_rollout_ref:
  model: {path: org/small, lora_rank: 8}
  actor: {ppo_mini_batch_size: 32, loss_agg_mode: seq-mean-token-mean}
  rollout: {n: 4, val_kwargs: {n: 2}}
trainer: {n_gpus_per_node: 1, default_local_dir: "out/${trainer.project_name}"}
custom_reward_function: {path: my/score.py}
"""
    recipe, text, _ = migrate(tmp_path, capsys, "verl.yaml", config)
    assert recipe["reward_funcs"] == ["my/score.py:compute_score"]
    assert recipe["loss_type"] == "grpo" and recipe["num_generations"] == 4
    assert recipe["use_peft"] is True and recipe["lora_r"] == 8 and recipe["lora_alpha"] == 16
    assert "# output_dir:   # by hand" in text


def test_sizes_of_megatron_are_in_completions(tmp_path, capsys):
    script = (
        "NPROC_PER_NODE=8 megatron rlhf --rlhf_type grpo --model m --dataset d.jsonl "
        "--tensor_model_parallel_size 2 --global_batch_size 128 --micro_batch_size 4 "
        "--steps_per_generation 4 --num_generations 8 --reward_funcs accuracy --lr 1e-6\n"
    )
    recipe, text, _ = migrate(tmp_path, capsys, "run.sh", script)
    assert (
        "64 prompts x 8 completions = 512 completions. Optimizer steps per generation: 4." in text
    )
    assert "128 completions = 4 processes x 8 micro-batches x 4." in text
    assert recipe["learning_rate"] == 1e-6


def test_text_of_the_file_stays_in_its_place(tmp_path, capsys):
    """A value cannot add keys to the recipe, and control characters do not reach a terminal."""
    settings = {
        "model_name_or_path": "m\nuse_cpu: true\n# \u2028beta: 9",
        "dataset_name": "d\x1b[31m",
        "unheard\nof": "x\nbeta: 9",
        "reward_funcs": ["nobody\nbeta: 9"],
        "learning_rate": "much\nbeta: 9",
    }
    text = "".join(f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in settings.items())
    recipe, written, told = migrate(tmp_path, capsys, "hostile.yaml", text)
    assert recipe["model_name_or_path"] == settings["model_name_or_path"]
    assert not {"beta", "use_cpu", "learning_rate"} & recipe.keys()
    assert "\x1b" not in written + told and "\u2028" not in written + told


@pytest.mark.parametrize("number", ["1000000007", "999999999989", "9" * 200, "1e300", "x", "-5"])
def test_sizes_out_of_range_are_remarked_on_and_take_no_time(tmp_path, capsys, number):
    sizes = f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={number} trainer.nnodes={number}"
    script = VERL.replace("$@", f"actor_rollout_ref.actor.ppo_mini_batch_size={number} {sizes}")
    recipe, _, told = migrate(tmp_path, capsys, "run.sh", script)
    assert recipe.get("generation_batch_size", 256) == 256
    assert "is not a whole number from 1 to 1,000,000. The default is used" in told
    config = f"per_device_train_batch_size: {number}\nmodel_name_or_path: m\ndataset_name: d\n"
    (tmp_path / "recipe.yaml").unlink()
    recipe, _, _ = migrate(tmp_path, capsys, "x.yaml", config, "--num_processes", "2")
    assert recipe["per_device_train_batch_size"] == 8


def test_a_size_that_is_written_as_a_decimal_is_read(tmp_path, capsys):
    recipe, _, _ = migrate(
        tmp_path, capsys, "run.sh", VERL.replace("train_batch_size=64", "train_batch_size=6.4e1")
    )
    assert recipe["generation_batch_size"] == 256


def test_secrets_are_not_written(tmp_path, capsys):
    text = "model_name_or_path: m\ndataset_name: d\nhub_token: hf_hidden\n"
    _, written, told = migrate(tmp_path, capsys, "x.yaml", text)
    assert "hf_hidden" not in written + told
    assert "hub_token: left out, because a recipe should not contain secrets" in told


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("x.yaml", "a: &b [1]\nc: *b\n", "aliases"),
        ("x.yaml", "- 1\n", "not a recipe"),
        ("x.yaml", "", "has no setting of a known project"),
        ("x.yaml", "services: {web: {image: nginx}}\n", "has no setting of a known project"),
        ("x.sh", "echo hello\n", "no known command that trains with GRPO"),
        ("x.sh", "swift rlhf --rlhf_type dpo --model m\n", "than GRPO (rlhf_type is dpo)"),
        ("x.yaml", "rlhf_type: dpo\nmodel: m\n", "than GRPO (rlhf_type is dpo)"),
        ("x.yaml", "algorithm: {adv_estimator: gae}\n", "GRPO (algorithm.adv_estimator is gae)"),
        ("x.sh", VERL.replace("=grpo", "=gae"), "GRPO (algorithm.adv_estimator is gae)"),
        ("x.sh", "pip install trl grpo\n", "no known command that trains with GRPO"),
        ("x.sh", "python -m pip install trl grpo\n", "no known command that trains with GRPO"),
        ("x.sh", "python make_grpo_data.py --out d\n", "no known command that trains with GRPO"),
        ("x.sh", "python -m verl.trainer.main_eval data.path=x\n", "no known command that trains"),
        ("x.sh", "trl grpo 'a\n", "it ends within a quote or after a backslash"),
        ("x.sh", "x" * 2**19, "larger than"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, capsys, name, content, words):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert main(["migrate", str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err


def test_special_files_and_existing_recipes_are_refused(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe.sh")
    assert main(["migrate", str(tmp_path / "pipe.sh")]) == 2
    assert main(["migrate", str(tmp_path / "nothing.sh")]) == 2
    (tmp_path / "run.sh").write_text(TRL, encoding="utf-8")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("mine", encoding="utf-8")
    assert main(["migrate", str(tmp_path / "run.sh"), "--output", str(recipe)]) == 2
    assert recipe.read_text(encoding="utf-8") == "mine"
    assert main(["migrate", str(tmp_path / "run.sh"), "--from", "verk"]) == 2
    assert "Did you mean 'verl'?" in capsys.readouterr().err


def test_each_translation_writes_keys_and_values_of_a_recipe():
    hints = recipe_hints()
    for name, rule in TRANSLATIONS.items():
        assert name in FOREIGN
        if isinstance(rule, str):
            assert rule in hints, name
            continue
        for written in rule.values():
            if isinstance(written, str):
                assert written in hints, name
                continue
            for key, value in written.items():
                assert convert(key, value, hints[key]) == value, name


def test_the_page_of_keys_is_what_the_table_says():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make keys`"


@pytest.mark.parametrize(
    ("settings", "left", "penalty"),
    [
        ("reward_model.enable=True reward_model.model.path=$REWARD", "$REWARD", False),
        (
            "custom_reward_function.path=$REWARD reward_model.overlong_buffer.enable=True "
            "reward_model.overlong_buffer.len=128",
            "$REWARD:compute_score",
            True,
        ),
    ],
)
def test_a_reward_with_an_unset_variable_is_left_to_the_user(
    tmp_path, capsys, settings, left, penalty
):
    start = "python -m verl.trainer.main_ppo data.train_files=d.parquet"
    command = f"{start} data.max_response_length=512 {settings}\n"
    recipe, text, told = migrate(tmp_path, capsys, "run.sh", command)
    assert "reward_funcs" not in recipe and left in text
    assert "the file does not set $REWARD. Set reward_funcs by hand." in told
    assert ("also add DAPO's penalty for long completions: {'name': 'soft_" in told) == penalty
