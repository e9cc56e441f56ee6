"""`grpo-ext check`: find problems in a recipe before a run.

examples:
  grpo-ext check --config recipes/countdown/tiny.yaml
  grpo-ext check --config recipes/countdown/qwen2.5-3b.yaml --num_processes 4 --elsewhere
  grpo-ext check --config mine.yaml --learning_rate 1e-5 --json
  grpo-ext check --config mine.yaml --sample 8

It needs no GPU and, without --sample, loads no model. It checks the recipe's keys, types, ranges
and batch sizes, and whether settings contradict each other; the first rows of the data, with the
chat template, tools and tokenizer; the environment; the rewards, on three made-up completions; the
vLLM server; and the disk. If the hub cannot be reached, a dataset or model that is only on the hub
is reported as a problem, or with --elsewhere as a note.

--sample N also tries the rewards on N completions that the model generates for the first rows. They
are sampled as in training, but by transformers, in groups of at most 4 completions (fewer if
num_generations is smaller); N is rounded up to whole groups. The output says in how many groups the
rewards differ, because GRPO learns only from those groups.

exit codes: 0 the recipe is sound, even if the rewards differ in no group; 1 it has problems;
2 there is no such recipe, or its file cannot be opened
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from grpo_ext.cli.command import add_processes, add_recipe_command, at_least
from grpo_ext.common.files import in_bytes
from grpo_ext.common.run_time import counted
from grpo_ext.common.untrusted import printable
from grpo_ext.recipe.problems import Findings

MAX_CHARACTERS = 1500  # how much of the first prompt to show
MAX_SAMPLE = 400  # how much of a sampled completion to show


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    add_processes(parser)
    parser.add_argument(
        "--elsewhere",
        action="store_true",
        help="do not check this machine, because the run will be on another one",
    )
    parser.add_argument(
        "--sample",
        type=at_least(1),
        default=0,
        metavar="N",
        help="also try the rewards on N completions of the model, which must be on this machine "
        "(default: 0)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.preflight.check_recipe import check_recipe

    findings = check_recipe(
        args.config, args.overrides, args.num_processes, args.elsewhere, args.sample
    )
    if args.json:
        print(json.dumps({"recipe": args.config, **findings.as_dict()}, indent=2))
    else:
        print_findings(findings, args.config)
    return 0 if findings.sound else 1


def print_findings(findings: Findings, name: str) -> None:
    """Print the figures, notes, problems and verdict for the recipe called `name`."""
    figures = findings.figures
    if figures.get("batch"):
        batch = figures["batch"]
        print(
            f"batch    a generation: {counted(batch['prompts'], 'prompt')}, "
            f"{batch['completions']} completions; an optimizer step: {batch['step']} completions"
        )
    for title, part in (("rows", "rows"), ("eval", "evaluation")):
        for sentence in figures.get(part, []):
            print(f"{title:8} {printable(sentence)}")
    if "eval_batch" in figures:
        print(f"         in batches of {figures['eval_batch']} completions per process")
    if figures.get("prompts"):
        print_prompts(figures["prompts"])
    if figures.get("turns"):
        print(f"turns    {figures['turns']}")
    if figures.get("episodes"):
        print_episodes(figures["episodes"])
    for environment, episodes in figures.get("episodes_by_environment", {}).items():
        print_episodes(episodes, f"in {printable(environment)}: ")
    if figures.get("rewards"):
        print_rewards(figures["rewards"])
    for task, rewards in figures.get("rewards_by_task", {}).items():
        print_rewards(rewards, f" of the task {printable(task)}")
    if figures.get("samples"):
        print_samples(figures["samples"])
    elif "samples" not in figures and has_equal_scores(figures):
        print("         equal scores of made-up completions say little: try --sample 8")
    if "server" in figures:
        print(f"server   {figures['server']}")
    if "disk" in figures:
        print(f"disk     {in_bytes(figures['disk']['free'])} free for output_dir")
    for note in findings.notes:
        print(printable(f"note     {note}"))
    for problem in findings.problems:
        print(printable(f"PROBLEM  {problem}"))
    print(f"{name}: {verdict(findings)}")


def verdict(findings: Findings) -> str:
    """Return the verdict for the last line: the number of problems, or that the recipe is sound.

    If the rewards differ in no group of sampled completions, the recipe is still sound, but the
    verdict says that its first steps would probably teach nothing.
    """
    if not findings.sound:
        return counted(len(findings.problems), "problem")
    samples = findings.figures.get("samples")
    if samples and samples["groups"]["differ"] == 0:
        return (
            "sound, but nothing to learn from yet: no reward with a nonzero weight gave different "
            "scores to completions of the same prompt (groups with different rewards: 0 of "
            f"{samples['groups']['count']}). If the scores are low, use an easier prompt, easier "
            "rows, a reward with partial credit, or a warm start. If they are high, use harder "
            "rows (docs/does-not-learn.md). A larger --sample gives a more reliable result."
        )
    return "sound"


def print_prompts(prompts: Mapping[str, Any]) -> None:
    """Print the token counts of the prompts, and the first prompt with its special tokens."""
    tokens = prompts["tokens"]
    limit = "the limit is unknown"
    if prompts["room"] is not None:
        limit = f"at most {prompts['room']} fit, and {prompts['over']:.0%} are longer"
    print(
        f"prompts  {tokens['min']} to {tokens['max']} tokens, mean {tokens['mean']:.1f}, "
        f"in the first {prompts['rows']} rows; {limit}"
    )
    print("         the first prompt, as the model sees it:")
    first_prompt = prompts["first"]
    if len(first_prompt) > MAX_CHARACTERS:
        first_prompt = first_prompt[:MAX_CHARACTERS] + " ..."
    for line in printable(first_prompt).split("\n"):
        print(f"         | {line}")


def print_episodes(episodes: Mapping[str, Any], place: str = "") -> None:
    """Print the lengths of an environment's answers to made-up turns, and how many turns fit.

    The lengths are in tokens. `place` is printed before them, to name the environment if the recipe
    has several.
    """
    length = f"at least {episodes['shortest_answer']}"
    if episodes["answers"]:
        shortest, longest = episodes["answers"]
        length = f"{shortest} to {longest}"
    print(
        f"episodes {place}answers of {length} tokens with the chat template; max_completion_length "
        f"{episodes['room']} has room for {counted(episodes['turns'], 'turn')} of at most "
        f"{episodes['turn_tokens']} tokens"
    )


def print_rewards(rewards: Mapping[str, Any], task: str = "") -> None:
    """Print the score of each reward for each made-up completion, or `-` if there is no score.

    `task` is appended to the title, to name the task if the recipe has several.
    """
    width = max(map(len, rewards["scores"]), default=0)
    print(f"rewards  on three made-up completions of the first row{task}:")
    rows = {"": list(rewards["completions"])}
    for name, scores in rewards["scores"].items():
        rows[name] = ["-" if score is None else f"{score:.3g}" for score in scores]
    for name, cells in rows.items():
        columns = "".join(f"{cell:>9}" for cell in cells)
        print(f"         {name:{width}}{columns}")
    in_tags = printable(rewards["completions"]["in tags"]).replace("\n", "\\n")
    print(f"         in tags: {in_tags[:200]}")


def has_equal_scores(figures: Mapping[str, Any]) -> bool:
    """Return whether any reward gave all made-up completions the same score, or scored none."""
    trials = [*figures.get("rewards_by_task", {}).values()]
    if figures.get("rewards"):
        trials.append(figures["rewards"])
    return any(len({*scores}) == 1 for trial in trials for scores in trial["scores"].values())


def print_samples(samples: Mapping[str, Any]) -> None:
    """Print each sampled completion with its scores, then figures about rewards and groups.

    The figures are the mean and standard deviation of each reward, and the number of groups whose
    completions have different rewards.
    """
    completions = samples["completions"]
    groups = samples["groups"]
    print(
        f"samples  {len(completions)} completions, {groups['size']} of each prompt, at temperature "
        f"{samples['temperature']:g}:"
    )
    for completion in completions:
        end = ", cut off" if completion["finish_reason"] == "length" else ""
        scores = []
        for name, score in completion["rewards"].items():
            scores.append(f"{printable(name)} {'-' if score is None else f'{score:.3g}'}")
        title = f"row {completion['row'] + 1}, {completion['length']} tokens{end}"
        print(f"         {title}: {', '.join(scores)}")
        for line in printable(shortened(completion["text"])).split("\n"):
            print(f"         | {line}")
    width = max(map(len, samples["rewards"]), default=0)
    for name, spread in samples["rewards"].items():
        print(
            f"         {printable(name):{width}}  mean {spread['mean']:.3g}, "
            f"std within a group {spread['std']:.3g}"
        )
    if groups["differ"] is not None:
        print(
            f"groups   {groups['differ']} of {groups['count']} "
            "have completions with different rewards, which is what GRPO learns from"
        )


def shortened(text: str) -> str:
    """Return a completion, without its middle if it has more than `MAX_SAMPLE` characters."""
    if len(text) <= MAX_SAMPLE:
        return text
    half = MAX_SAMPLE // 2
    return f"{text[:half]} ... {text[-half:]}"
