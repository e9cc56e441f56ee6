"""What the README and the pages of docs/ tell people to type.

It is understood, and run where that is quick.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml
from transformers import TrainerState

from grpo_ext import RecipeError, load_recipe, play
from grpo_ext.cli.main import main, make_parser
from grpo_ext.common.pages import DOES_NOT_LEARN, NOTHING_WAS_LEARNED
from grpo_ext.objective.advantage import get_advantages, joint_advantages
from grpo_ext.observe.health_rules import RULES
from grpo_ext.recipe.foreign import FOREIGN
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.rewards import build
from grpo_ext.rewards.guard import AsyncGuard
from grpo_ext.run.from_recipe import named_rewards_and_weights, train_rows
from tests.support.places import REPO
from tests.support.registry_state import registry_as_before

PAGES = [
    REPO / "README.md",
    *(
        page
        for folder in ("docs", "docs/how-to", "docs/coming-from", "docs/promises", "examples")
        for page in sorted((REPO / folder).glob("*.md"))
    ),
]
MODEL = {"model_name_or_path": "m"}
STAND_INS = ("RECIPE", "mine.yaml", "mine/recipe.yaml")  # recipes of the reader
RUN = ("check", "plan", "rewards")  # the others train, or load a model


def commands() -> dict[str, list[str]]:
    """Every `grpo-ext` command of a shell block, by page."""
    found = {}
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words[:1] == ["grpo-ext"]:
                    to_file = words.index(">") if ">" in words else None
                    found[f"{page.name}: {' '.join(words)}"] = words[1:to_file]
    return found


def test_there_are_commands_on_every_page_about_recipes():
    pages = {name.partition(":")[0] for name in commands()}
    assert {"README.md", "recipes-check-plan.md"} <= pages


@pytest.mark.parametrize("name", commands())
def test_commands_are_understood(name, tmp_path, monkeypatch, capsys):
    words = [
        "recipes/countdown/tiny.yaml" if word in STAND_INS else word for word in commands()[name]
    ]
    monkeypatch.chdir(REPO)
    if "reasoning_gym" in name:
        pytest.importorskip("reasoning_gym")
    args, overrides = make_parser().parse_known_args(words)
    if getattr(args, "takes_overrides", False) and args.config is not None:
        load = load_sft_recipe if getattr(args, "module", "") == "grpo_ext.sft" else load_recipe
        load(args.config, overrides, getattr(args, "num_processes", None))
    elif words[0] not in RUN:
        assert not overrides
    if words[0] in RUN:
        assert main(words) in ((0, 1) if words[0] == "check" else (0,))
        assert capsys.readouterr().out
        if "--json" in words:
            main(words)
            assert json.loads(capsys.readouterr().out)


def block(page: str, kind: str, words: str) -> str:
    """The one block of a page that has these words."""
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    [found] = [
        code for code in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if words in code
    ]
    return found


def test_a_task_and_an_async_reward_are_found_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"riddle": "What is 1 + 1?", "answer": "2"}, {"riddle": "long " * 30, "answer": "3"}]
    (tmp_path / "riddles.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "riddles.py").write_text(block("how-to/more.md", "python", "class Riddles"))
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\n" + block("how-to/more.md", "yaml", "riddles.py:Riddles")
    )
    asking = "\n\nasync def ask_a_server(text):\n    return float(len(text))\n"
    (tmp_path / "my_rewards.py").write_text(
        block("how-to/more.md", "python", "async def judged") + asking
    )
    for name in ("riddles.py:Riddles", "riddles:Riddles"):
        recipe = load_recipe(tmp_path / "recipe.yaml", {"task": name})
        [row] = train_rows(recipe)
        assert (
            row["prompt"] == [{"role": "user", "content": "What is 1 + 1?"}]
            and row["solution"] == "2"
        )
        [accuracy], _ = named_rewards_and_weights(recipe)
        assert accuracy.name == "accuracy"
    [judged], _ = named_rewards_and_weights(
        load_recipe(None, {"reward_funcs": ["my_rewards.py:judged"]} | MODEL)
    )
    completions = [[{"role": "assistant", "content": text}] for text in ("a", "bcd")]
    assert asyncio.run(AsyncGuard(judged)(prompts=["?"] * 2, completions=completions)) == [1.0, 3.0]


def test_verls_rows_and_scores_are_used_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "1 + 1?"}],
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 0},
    }
    (tmp_path / "my_score.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    right = float(ground_truth in solution_str)\n"
        "    return {'score': right, 'acc': right} if extra_info else right\n"
    )
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    settings = block("coming-from.md", "yaml", "my_score.py")
    rows = block("coming-from.md", "yaml", "ground_truth").replace("parquet", "jsonl")
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\n" + rows.replace("reward_funcs: [number]\n", settings)
    )
    recipe = load_recipe(tmp_path / "recipe.yaml")
    [example] = train_rows(recipe)
    assert example["solution"] == "2"
    [verl], _ = named_rewards_and_weights(recipe)
    columns = {name: [row[name]] * 2 for name in ("data_source", "reward_model")}
    completions = [[{"role": "assistant", "content": text}] for text in ("It is 2.", "3")]
    assert verl(completions=completions, **columns) == [1.0, 0.0]
    infos = [row["extra_info"]] * 2
    assert verl(completions=completions, extra_info=infos, **columns) == [1.0, 0.0]


def test_gfpo_compares_the_completions_that_the_last_reward_keeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "coming-from/trl-experimental.md"
    (tmp_path / "gfpo.py").write_text(block(page, "python", "topk"))
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\ntask: prompts\ndataset_name: rows.jsonl\n"
        + block(page, "yaml", "gfpo.py")
    )
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.values["training"]["multi_objective_aggregation"] == "gfpo"
    answers = torch.tensor([[1.0, 0.0, 1.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    brevity = torch.tensor([[0.9, 0.8, 0.7, 0.6, 0.1, torch.nan]], dtype=torch.float64)
    weights = torch.tensor([1.0, 0.0], dtype=torch.float64)
    rewards = torch.stack([answers, brevity], dim=2).squeeze(0)  # (6, 2)
    found = joint_advantages(rewards, weights, 6, "gfpo")
    deviation = 0.5 / (math.sqrt(1 / 3) + 1e-4)  # of 1, 0, 1, 0, by their sample std
    wanted = [deviation, -deviation, deviation, -deviation, 0.0, 0.0]
    assert found.tolist() == pytest.approx(wanted)


def test_maxrl_divides_by_the_mean_of_the_group():
    exec(block("coming-from/prime-rl.md", "python", "max_rl"), {})
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    found = get_advantages("max_rl").estimate(rewards, "sample")
    assert found.tolist() == [[3.0, -1.0, -1.0, -1.0], [0.0, 0.0, 0.0, 0.0]]


def test_openrlhfs_reward_function_is_called_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    page = "coming-from/openrlhf.md"
    (tmp_path / "reward_func.py").write_text(
        "import torch\n\n\ndef reward_func(queries, prompts, labels):\n"
        "    right = [q == p + label for q, p, label in zip(queries, prompts, labels)]\n"
        "    return {'rewards': torch.tensor(right).float()}\n"
    )
    (tmp_path / "openrlhf_reward.py").write_text(block(page, "python", "reward_func"))
    (tmp_path / "recipe.yaml").write_text(
        "model_name_or_path: m\ntask: prompts\ndataset_name: rows.jsonl\n"
        + block(page, "yaml", "openrlhf_reward.py")
    )
    [reward], _ = named_rewards_and_weights(load_recipe(tmp_path / "recipe.yaml"))
    messages = [{"role": "user", "content": "1 + 1 = "}]
    completions = [[{"role": "assistant", "content": text}] for text in ("2", "3")]
    scores = reward(completions=completions, prompts=[messages, "1 + 1 = "], label=["2", "2"])
    assert scores == [1.0, 0.0]


def test_the_recipe_of_a_notebook_of_unsloth_is_one(tmp_path):
    (tmp_path / "recipe.yaml").write_text(block("coming-from/unsloth.md", "yaml", "use_peft"))
    recipe = load_recipe(tmp_path / "recipe.yaml")
    assert recipe.model.lora_r == 32 and recipe.values["training"]["vllm_enable_sleep_mode"]


def test_an_environment_counts_down_as_the_page_says():
    exec(block("coming-from/tinker-cookbook.md", "python", "class Countdown"), found := {})
    game = found["Countdown"](start=2)
    assert game.reset({}) == "Count down from 2."
    assert [game.step("2"), game.step("1")] == [("next", False), ("next", True)]
    assert game.score == 1.0
    game.reset({})
    assert game.step("1") == ("wrong", True)


def test_an_environment_is_played_as_the_page_says():
    exec(block("several-turns.md", "python", "class Doubling"), found := {})
    exec(block("several-turns.md", "python", "played = play("), found)
    assert found["played"].counts.turns == 3


def test_calls_that_step_reads_are_answered():
    exec(block("several-turns.md", "python", "class Adding"), found := {})
    played = play(found["Adding"](), ["I add: <add>2 3</add>", "It is 5."])
    assert [message["content"] for message in played.messages] == [
        "I add: <add>2 3</add>",
        "5",
        "It is 5.",
    ]
    assert played.end == "environment" and played.errors == []


def test_a_file_of_completions_is_scored_as_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = "<think>\nx\n</think>\n<answer>\n1\n</answer>"
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"completion": text}) + "\n" for text in (right, "1"))
    )
    exec(block("rewards.md", "python", 'build("format"'), found := {})
    assert found["scores"] == [1.0, 0.0]


def test_foreign_keys_are_not_ours_and_told_in_a_recipe():
    own = load_recipe(None, {"model_name_or_path": "m"}).flat.defaults
    for key in FOREIGN:
        assert key not in own, f"{key} is a key of ours"
    with pytest.raises(RecipeError) as error:
        load_recipe(
            None,
            {
                "model_name_or_path": "m",
                "torch_dtype": "bfloat16",
                "dynamic_sample": True,
                "packing": True,
            },
        )
    assert "torch_dtype is a key of open-r1, ms-swift. Use dtype." in str(error.value)
    assert "Use group_filter: refill" in str(error.value)
    assert "Use layout: packed" in str(
        error.value
    )  # and not that it is a key of supervised training


def test_what_to_write_instead_exists():
    own = load_recipe(None, {"model_name_or_path": "m"}).flat.defaults
    for key, (_, instead) in FOREIGN.items():
        named = re.match(r"([a-z_]+)(?=$|:|,)", instead)
        assert named is None or named.group(1) in own, (key, instead)


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Sphinx and GitHub make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = set()
    for heading in re.findall(r"^#{1,3} (.+)$", text, re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(words.replace(" ", "-"))
    return found


def test_links_to_sections_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text):
            linked = page.parent / target if target else page
            assert section in anchors(linked), f"{page.name}: {target}#{section}"


def test_each_alarm_has_its_section_on_the_page_that_it_names():
    page = REPO / DOES_NOT_LEARN
    sections = {name: rule.section for name, rule in RULES.items()}
    sections["learned_nothing"] = NOTHING_WAS_LEARNED
    assert set(sections.values()) <= anchors(page)
    text = page.read_text(encoding="utf-8")
    for name, section in sections.items():
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert f"(#{section})" in row


def test_keys_that_the_pages_of_advice_name_exist():
    task = {"task": "prompts", "dataset_name": "rows.jsonl"}
    keys = {*load_recipe(None, MODEL | task).flat.defaults, "credit", "mode"}
    for page in ("does-not-learn.md", "faq.md"):
        text = (REPO / "docs" / page).read_text(encoding="utf-8")
        named = set(re.findall(r"`([a-z_]+): [^`]+`", text))
        assert len(named) > 10 and named <= keys, named - keys


def test_a_reward_reads_the_step_as_the_page_says():
    with registry_as_before():
        exec(block("faq.md", "python", "brief_later"), {"__name__": "faq"})
        reward = build("brief_later")
        texts = ["a" * 100, "a" * 300]
        for step, scores in ((1, [1.0, 1.0]), (51, [1.0, 0.0])):
            state = TrainerState(global_step=step, max_steps=100)
            assert reward(completions=texts, trainer_state=state) == scores


def test_a_prefix_scores_a_think_tag_that_the_prompt_has_opened():
    [settings] = yaml.safe_load(block("faq.md", "yaml", "prefix"))["reward_funcs"]
    options = {name: value for name, value in settings.items() if name != "name"}
    text = "a</think><answer>1</answer>"
    assert build("format", **options)(completions=[text]) == [1.0]
    assert build("format")(completions=[text]) == [0.0]


def test_each_promise_names_tests_that_exist():
    """In docs/security.md. A name without a folder lies beside the one before it."""
    page = (REPO / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row[1].strip() != "promised"]
    assert len(promises) > 20
    folder = REPO
    for promise in promises:
        names = re.findall(r"`([\w/]+\.py)`", promise[3])
        assert names or "the same" in promise[3], promise[1]
        for name in names:
            if "/" in name:
                folder = (REPO / name).parent
            assert (folder / name.rpartition("/")[2]).is_file(), name
