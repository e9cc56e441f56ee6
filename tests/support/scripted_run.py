"""Whole runs of the trainer on scripted completions, recorded as `trainer_oracle` reads them.

Only the engine is replaced: a scripted sampler returns tokens, kept sets and log-probs as the
engine of the same settings would, and everything after it is the trainer's own.
"""

from __future__ import annotations

import os
import random
import string
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
)

import grpo_ext.trainer.assembly as assembly
import grpo_ext.trainer.trainer as trainer_module
from grpo_ext import Environment, GRPOExtConfig, GRPOExtTrainer
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.run.ranks import leave_ranks
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.samplers.choose import scoring_params
from grpo_ext.samplers.hf import HFSampler
from grpo_ext.samplers.lockstep_episodes import Turn, play_by_turns
from grpo_ext.samplers.process import ProcessSampler
from grpo_ext.samplers.vllm import VLLMSampler
from grpo_ext.seams.generate import replaced
from grpo_ext.seams.vllm import generates_with
from grpo_ext.step import feed
from grpo_ext.step.records import Generation
from grpo_ext.tiny.model import build_model
from grpo_ext.vllm.kept_tokens import wants_kept
from tests.support.tiny_run import tiny_trainer

DEVICE = os.environ.get("HUNT_DEVICE", "cpu")  # of the trainer: "cpu" or "cuda"
LENGTH = 6  # most tokens of a completion
EPISODE_LENGTH = 24  # most tokens of an episode with its answers
STEPS = 3
ROWS = 32
CHARACTERS = string.ascii_lowercase + string.digits[:3] + " "
WORLD = "tests.support.scripted_run:Letters"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"


def build_start(folder: Path) -> Path:
    """A folder with an untrained model of 4,000 parameters and a tokenizer of 33 tokens, one a
    character.
    """
    words = ["<|pad|>", "<|end|>", "<|unknown|>", *CHARACTERS]
    backend = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unknown|>")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        unk_token="<|unknown|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    build_model(
        tokenizer, **shape, max_position_embeddings=64, initializer_range=0.4
    ).save_pretrained(folder)
    return folder


class Letters(Environment):
    """Is over when the model says an `a`, or after three turns; every turn changes the score, up or
    down.
    """

    def __init__(self) -> None:
        self._scores: list[float] = [0.0]
        self.score = 0.0

    def step(self, text: str) -> tuple[str, bool]:
        self.score += (sum(map(ord, text)) % 5 - 2) / 4
        self._scores.append(self.score)
        return text[:1] or "b", "a" in text or len(self._scores) > 3


# ---- rewards: each a number that row and completion determine


def mixed(ids: list[int], row: int, kind: int) -> int:
    return sum((i + 1) * token for i, token in enumerate(ids)) + 7 * row + 13 * kind + len(ids)


def solved(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """0 or 1; the same for all completions of every fourth prompt."""
    values = zip(completion_ids, number, strict=True)
    return [float(n % 8 == 0) if n % 4 == 0 else float(mixed(ids, n, 0) % 2) for ids, n in values]


def shaped(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """Differs within most groups."""
    return [mixed(ids, n, 1) % 4 / 4 for ids, n in zip(completion_ids, number, strict=True)]


def patchy(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """Does not score every third completion."""
    rows = zip(completion_ids, number, strict=True)
    return [None if mixed(ids, n, 2) % 3 == 0 else mixed(ids, n, 3) % 4 / 2 for ids, n in rows]


def tenths(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """Tenths, of which sums round."""
    rows = zip(completion_ids, number, strict=True)
    return [100 + mixed(ids, n, 4) % 4 / 10 for ids, n in rows]


def nine_minus_tenths(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """What is missing to a sum that is equal for all completions of every other prompt, up to
    rounding.
    """
    rows = zip(completion_ids, number, strict=True)
    return [9 - mixed(ids, n, 4 + n % 2) % 4 / 10 for ids, n in rows]


def constant(completion_ids: Any, **columns: Any) -> list[float | None]:
    """A number that no sum of halves is."""
    return [0.7 for _ in completion_ids]


def first_task(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """Scores only the prompts of even number."""
    scores = solved(completion_ids, number)
    return [s if n % 2 == 0 else None for s, n in zip(scores, number, strict=True)]


def second_task(completion_ids: Any, number: Any, **columns: Any) -> list[float | None]:
    """Scores only the prompts of odd number, and of those not every one."""
    scores = patchy(completion_ids, number)
    return [s if n % 2 == 1 else None for s, n in zip(scores, number, strict=True)]


REWARDS: dict[str, list[Any]] = {
    "one": [solved],
    "two": [solved, shaped],
    "missing": [solved, patchy],
    "all may miss": [patchy, first_task],
    "tasks": [first_task, second_task],
    "tasks and format": [first_task, second_task, shaped],
    "constant beside": [constant, shaped],
    "equal": [constant],
    "tenths": [tenths, nine_minus_tenths],
}


def name_of(reward: Any) -> str:
    return reward if isinstance(reward, str) else reward.__name__


def rewards_of(settings: dict[str, Any]) -> list[Any]:
    """Return the reward functions of a run: those of `rewards`, behind that of the environment, if
    there is one.
    """
    chosen = REWARDS[settings["rewards"]]
    return ["environment", *chosen] if settings.get("environment") else chosen


# ---- the engine


class Scripted(Sampler):
    """Completes any prompt by random tokens, with the abilities of the engine that the settings ask
    for.

    A kept set is random, too, and has the drawn token mostly. Log-probs are those of the weights at
    the time of the request, with noise as between two engines.
    """

    def __init__(self, trainer: Any, watched: bool):
        args = trainer.args
        engine: type[Sampler] = HFSampler
        if args.use_vllm:
            engine = VLLMSampler
        elif args.sampler == "process":
            engine = ProcessSampler
        self.name = getattr(engine, "name", engine.__name__)
        self.abilities = replace(engine.abilities, reports_weights=False)
        if engine is HFSampler:
            self.abilities = replace(self.abilities, returns_kept_tokens=watched)
        if engine is VLLMSampler:  # as on a GPU
            returns_kept = watched and wants_kept(vars(args))
            self.abilities = replace(self.abilities, returns_kept_tokens=returns_kept)
        self.params = scoring_params(trainer, self.abilities)
        rank = trainer.accelerator.process_index
        self.trainer, self.random = trainer, random.Random(1000 * args.seed + rank)
        self.made: Generation | None = None

    def submit(self, request: Request) -> None:
        if request.episodes:
            played = play_by_turns(request, self.turn)
            ids = played.completion_ids
        else:
            played = Generation(request.prompt_ids, [], request.policy_step)
            most = request.max_new_tokens or self.trainer.args.max_completion_length
            ids = [self.tokens(most) for _ in request.prompt_ids]
        kept = [self.kept_sets(row) for row in ids] if self.keeps else None
        logps = self.log_probs(request.prompt_ids, ids, kept, played.tool_mask)
        stored = kept and [
            KeptSet.from_mask(torch.tensor(k, dtype=torch.bool).view(-1, self.size)) for k in kept
        ]
        fields = {**vars(played), "completion_ids": ids, "sampling_logps": logps, "kept": stored}
        self.made = Generation(**fields)

    def collect(self) -> Generation:
        assert self.made is not None
        return self.made

    @property
    def size(self) -> int:
        return self.trainer.model.config.vocab_size

    @property
    def keeps(self) -> bool:
        return self.abilities.returns_kept_tokens and self.params.truncated

    def turn(self, contexts: list[list[int]], most: int) -> list[Turn]:
        ids = [self.tokens(min(most, 4), empty=False) for _ in contexts]
        # a request of fewer tokens than asked for ends the episode, so most turns have an end token
        ids = [row if row[-1] == 1 or self.random.random() < 0.2 else [*row[:-1], 1] for row in ids]
        return [Turn(row, [None] * len(row)) for row in ids]

    def tokens(self, most: int, empty: bool = True) -> list[int]:
        """Return up to `most` tokens; the last one is mostly the end token."""
        if empty and self.random.random() < 0.1:
            return []
        if self.random.random() < 0.25:
            return self.random.choices(range(3, self.size), k=most)
        return [*self.random.choices(range(3, self.size), k=self.random.randrange(most)), 1]

    def kept_sets(self, ids: list[int]) -> list[list[bool]]:
        sets = []
        for token in ids:
            share = self.random.choice([0.05, 0.4, 0.9])
            kept = [self.random.random() < share for _ in range(self.size)]
            kept[token] = kept[token] or self.random.random() < 0.9
            sets.append(kept)
        return sets

    def log_probs(
        self,
        prompts: list[list[int]],
        completions: list[list[int]],
        kept: list[list[list[bool]]] | None,
        tool_mask: list[list[int]] | None,
    ) -> list[torch.Tensor]:
        args = self.trainer.args
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        noise = random.Random(self.random.random())
        size = noise.choice([0.02, 0.3])
        found = []
        for i, (prompt, ids) in enumerate(zip(prompts, completions, strict=True)):
            with torch.no_grad():
                context = torch.tensor([[*prompt, *ids]], device=model.device)  # (1, T)
                logits = model(input_ids=context).logits[0].cpu()
            logits = logits[len(prompt) - 1 : len(prompt) - 1 + len(ids)] / args.temperature
            if kept is not None:
                there = torch.tensor(kept[i], dtype=torch.bool).view(-1, self.size)
                there = there.scatter(1, torch.tensor(ids).long().view(-1, 1), True)
                logits = logits.masked_fill(~there, -torch.inf)
            logps = logits.log_softmax(-1).gather(1, torch.tensor(ids).long().view(-1, 1))[:, 0]
            logps = logps + size * torch.tensor([noise.gauss(0, 1) for _ in ids])
            unknown = [not mine for mine in tool_mask[i]] if tool_mask else [False] * len(ids)
            if not self.abilities.separate_engine and noise.random() < 0.5:
                unknown = [True] * len(ids)
            elif args.behaviour_policy != "sampler":
                unknown = [there or noise.random() < 0.1 for there in unknown]
            found.append(logps.masked_fill(torch.tensor(unknown, dtype=torch.bool), torch.nan))
        return found


def scripted_sampler(trainer: Any, watched: bool) -> tuple[Scripted, SamplingParams]:
    """In place of `make_sampler`."""
    sampler = Scripted(trainer, watched)
    return sampler, sampler.params


class NoEngine:
    """In place of TRL's client of vLLM."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.vllm_client = self

    def get_server_info(self) -> dict[str, Any]:
        return {"model_config": {"logprobs_mode": "processed_logprobs", "dtype": "float32"}}


# ---- a run


class Steps(TrainerCallback):
    """The gradient that each optimizer step gets, with the weights before it, and those of the
    reference.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self.reference: torch.nn.Module | None = None

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        named = [(name.removeprefix("module."), p) for name, p in model.named_parameters()]
        noted: dict[str, Any] = {
            "gradient": {n: p.grad.clone().cpu() for n, p in named if p.grad is not None},
            "weights": {n: p.detach().double().cpu() for n, p in named},
        }
        if self.reference is not None:
            named = list(self.reference.named_parameters())
            noted["reference"] = {n: p.detach().double().cpu() for n, p in named}
        self.steps.append(noted)


class Recorder:
    """What a rank of the trainer gets from outside: generations, rewards, and the order of their
    rows.
    """

    def __init__(self, trainer: Any, settings: dict[str, Any]):
        self.trainer, self.settings = trainer, settings
        self.generations: list[dict[str, Any]] = []
        generations = trainer.parts.generations
        judge = trainer.parts.judge
        trainer.parts.feed.generate = self.beginning(trainer.parts.feed.generate)
        generations._generation = self.sampled(generations._generation)
        judge.rewards = self.rewarded(judge.rewards)

    def beginning(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def generate(rows: Any) -> Any:
            step = self.trainer.state.global_step
            self.generations.append({"step": step, "calls": [], "order": None, "rows": len(rows)})
            return plain(rows)

        return generate

    def sampled(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def sample(prompts: Any, episodes: Any) -> Generation:
            made = plain(prompts, episodes)
            self.episodes, self.made = episodes, made
            return made

        return sample

    def rewarded(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def rewards(rows: Any, prompts: Any, completions: Any, ids: Any, *others: Any) -> Any:
            call = [self.row(i, row) for i, row in enumerate(rows)]
            self.generations[-1]["calls"].append(call)
            return plain(rows, prompts, completions, ids, *others)

        return rewards

    def ordered(self, plain: Callable[[int], torch.Tensor]) -> Callable[[int], torch.Tensor]:
        def order(rows: int) -> torch.Tensor:
            chosen = plain(rows)
            self.generations[-1]["order"] = chosen.tolist()
            return chosen

        return order

    def row(self, i: int, row: dict[str, Any]) -> dict[str, Any]:
        """Return a completion with its rewards, which do not come from the trainer."""
        made = self.made
        ids = made.completion_ids[i]
        gains = []
        scores = []
        world = self.settings.get("environment")
        if world is not None:
            scores = list(self.episodes[i].environment._scores)
            scores += scores[-1:] * (1 + self.episodes[i].turns - len(scores))
        if world is not None and world.get("credit") == "turn":
            gains = [after - before for before, after in pairwise(scores)]
        rewards = [
            scores[-1] if reward == "environment" else reward([ids], number=[row["number"]])[0]
            for reward in rewards_of(self.settings)
        ]
        cut = made.cut[i] if made.cut is not None else bool(ids) and ids[-1] not in (0, 1)
        return {
            "number": row["number"],
            "prompt": list(made.prompt_ids[i]),
            "ids": list(ids),
            "wrote": None if made.tool_mask is None else list(made.tool_mask[i]),
            "kept": None if made.kept is None else made.kept[i].mask().tolist(),
            "sampled": None if made.sampling_logps is None else made.sampling_logps[i].tolist(),
            "policy_step": made.policy_step
            if isinstance(made.policy_step, int)
            else list(made.policy_step[i]),
            "truncated": cut,
            "rewards": rewards,
            "gains": gains,
        }


def hardness(number: int) -> float:
    """Return how hard a row of the dataset is; some are equally hard."""
    return 5 * number % 11 / 4


# Arguments of every run that no formula reads.
ALWAYS: dict[str, Any] = {
    "bf16": False,
    "disable_tqdm": True,
    "health_action": "none",
    "learning_rate": 0.05,
    "log_samples": 0.0,
    "lr_scheduler_type": "constant",
    "max_completion_length": LENGTH,
    "max_grad_norm": 0.0,
    "max_steps": STEPS,
    "optim": "sgd",
    "report_to": "none",
    "reward_max_failure_rate": 1.0,
    "save_strategy": "no",
    "use_cpu": DEVICE == "cpu",
    "vllm_sync_check_steps": 0,
    "weight_decay": 0.0,
}
OF_THE_RUN = ("ranks", "rewards")  # settings that are no arguments of the trainer


def arguments(settings: dict[str, Any], out: Path | str) -> GRPOExtConfig:
    """Return the trainer's arguments; `ValueError` if they are refused."""
    chosen = {name: value for name, value in settings.items() if name not in OF_THE_RUN}
    length = {"max_completion_length": EPISODE_LENGTH} if settings.get("environment") else {}
    return GRPOExtConfig(output_dir=str(out), **{**ALWAYS, **length, **chosen})


def make_trainer(folder: Path, out: Path, settings: dict[str, Any], **more: Any) -> GRPOExtTrainer:
    """Return a trainer with a scripted engine; `ValueError` if the settings are refused."""
    chat = bool(settings.get("environment"))
    rows = []
    for number in range(ROWS):
        text = "ask " + CHARACTERS[number % 26] * (1 + number % 5)
        prompt: Any = [{"role": "user", "content": text}] if chat else text
        row = {"prompt": prompt, "number": number, "seed": number, "hardness": hardness(number)}
        rows.append(row)
    no_engine = replaced(trainer_module, our_vllm=lambda args: generates_with(NoEngine))
    with replaced(assembly, make_sampler=scripted_sampler), no_engine:
        return tiny_trainer(
            folder, rewards_of(settings), arguments(settings, out), Dataset.from_list(rows), **more
        )


def run(folder: Path, out: Path, settings: dict[str, Any]) -> None:
    """Train for a few steps, and write what this rank has recorded to `out/run-RANK.pt`."""
    rank = int(os.environ.get("RANK", 0))
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    steps = Steps()
    try:
        trainer = make_trainer(folder, out, settings, callbacks=[steps])
    except ValueError as error:
        torch.save({"refused": str(error)}, out / f"run-{rank}.pt")
        return
    if trainer.args.max_slots_per_prompt > 1:  # so that prompts differ from the first step on
        rates = trainer.parts.order.rates
        for number, key in enumerate(rates.numbers):
            rates.observe(key, number % 3, 2 + number % 7)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    recorder = Recorder(trainer, settings)
    if trainer.ref_model is not None:
        steps.reference = trainer.accelerator.unwrap_model(trainer.ref_model)
        generator = torch.Generator().manual_seed(9)
        for p in steps.reference.parameters():
            p.data.add_(0.1 * torch.randn(p.shape, generator=generator).to(p.device))
    with replaced(feed, random_order=recorder.ordered(feed.random_order)):
        trainer.train()
    args = trainer.args
    sampler = trainer.parts.sampler
    record = {
        "settings": settings,
        "difficulties": trainer.train_dataset[args.difficulty_column or "number"],
        "names": [name_of(reward) for reward in rewards_of(settings)],
        "separate": sampler.abilities.separate_engine,
        "order": sampler.abilities.truncation_order,
        "length": args.max_completion_length,
        "num_generations": args.num_generations,
        "groups": args.generation_batch_size // args.num_generations,
        "cut": {
            "slices": args.steps_per_generation,
            "num_iterations": args.num_iterations,
            "accumulation": args.gradient_accumulation_steps,
        },
        "generations": recorder.generations,
        "steps": steps.steps if rank == 0 else [],
    }
    torch.save(record, out / f"run-{rank}.pt")
    if ranks > 1:
        leave_ranks()


def joined(out: Path, ranks: int) -> dict[str, Any]:
    """Return the record of a run, with the completions of all ranks in one list a call."""
    records = [torch.load(out / f"run-{rank}.pt", weights_only=False) for rank in range(ranks)]
    first = records[0]
    if "refused" in first:
        return first
    generations = []
    for parts in zip(*(record["generations"] for record in records), strict=True):
        calls = [
            [row for call in of_ranks for row in call]
            for of_ranks in zip(*(part["calls"] for part in parts), strict=True)
        ]
        orders = [part["order"] for part in parts]
        generations.append({"step": parts[0]["step"], "calls": calls, "orders": orders})
    return {**first, "generations": generations}
