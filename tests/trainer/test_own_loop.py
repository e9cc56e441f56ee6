"""A loop that is written from scratch computes what the trainer computes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.own_loop import (
    Fault,
    Problem,
    Settings,
    loss_of,
    per_token_logps,
    rewards_of,
    sample,
    train,
)
from grpo_ext import GRPOExtTrainer
from grpo_ext.tasks.countdown import Countdown
from tests.support.tiny_run import tiny_arguments

STEPS = 3
TASK = Countdown(
    num_problems=24, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
)


def distinct_characters(completions, problems, settings):
    """A reward that differs within groups of an untrained model."""
    return torch.tensor([len(set(text)) / 10 for text in completions])


def trainer_run(folder, out, settings: Settings):
    """Train as the loop does, with the loop's own sampling."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    rows = list(TASK.generate("train"))
    problems = {}
    for row in rows:
        row["prompt"] = TASK.prompt(row)
        text = tokenizer.apply_chat_template(
            row["prompt"], tokenize=False, add_generation_prompt=True
        )
        problems[str(row["prompt"])] = Problem(text, row["nums"], row["target"])
    steps = []

    def rollout(prompts, trainer):
        asked = [problems[str(prompt)] for prompt in prompts]
        steps.append(asked[:: settings.num_generations])
        torch.manual_seed(len(steps) - 1)
        policy = trainer.accelerator.unwrap_model(trainer.model)
        drawn = sample(policy, tokenizer, [problem.prompt for problem in asked], settings)
        with torch.no_grad():
            logps = per_token_logps(policy, drawn, settings)
        length = drawn.completion_mask.shape[1]
        lengths = drawn.completion_mask.sum(dim=1).tolist()
        prompt_ids = [
            ids[mask.bool()].tolist()
            for ids, mask in zip(
                drawn.ids[:, :-length], drawn.attention_mask[:, :-length], strict=True
            )
        ]
        completion_ids = drawn.ids[:, -length:].tolist()
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": [ids[:end] for ids, end in zip(completion_ids, lengths, strict=True)],
            "logprobs": [row[:end].tolist() for row, end in zip(logps, lengths, strict=True)],
        }

    def reward(completions, **columns):
        texts = [completion[0]["content"] for completion in completions]
        return distinct_characters(texts, [], settings).tolist()

    args = tiny_arguments(
        out,
        max_steps=STEPS,
        per_device_train_batch_size=32 // settings.micro_batches,
        gradient_accumulation_steps=settings.micro_batches,
        num_generations=settings.num_generations,
        max_completion_length=settings.max_completion_length,
        optim=settings.optim,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        beta=settings.beta,
        use_bias_correction_kl=False,
        loss_type="grpo",
        top_k=settings.top_k,
        top_p=settings.top_p,
        max_grad_norm=settings.max_grad_norm,
        gradient_checkpointing=False,
    )
    trainer = GRPOExtTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=[reward],
        args=args,
        rollout_func=rollout,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model).state_dict(), steps


def loop_run(folder, steps, settings: Settings):
    """Return the weights after the loop's steps, and the figures of each step."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    figures = list(train(model, tokenizer, steps, settings, reward_function=distinct_characters))
    return model.state_dict(), figures


def largest_difference(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in one)


# With SGD the weights differ as the gradients do; Adam would blow up differences in tiny gradients.
SETTINGS = Settings(
    optim="sgd", learning_rate=0.1, max_completion_length=12, micro_batches=2, max_grad_norm=100.0
)
WITH_KL = replace(SETTINGS, beta=0.5)


@pytest.fixture(scope="module")
def plain(tiny_folder, tmp_path_factory):
    return trainer_run(tiny_folder, tmp_path_factory.mktemp("plain"), SETTINGS)


@pytest.fixture(scope="module")
def with_kl(tiny_folder, tmp_path_factory):
    return trainer_run(tiny_folder, tmp_path_factory.mktemp("kl"), WITH_KL)


@pytest.mark.parametrize("run, settings", [("plain", SETTINGS), ("with_kl", WITH_KL)])
def test_the_loop_without_faults_is_the_trainer(tiny_folder, request, run, settings):
    trained, steps = request.getfixturevalue(run)
    weights, _ = loop_run(tiny_folder, steps, settings)
    assert largest_difference(trained, weights) < 1e-5


@pytest.mark.parametrize("fault", [Fault.ONE_GROUP, Fault.MASK_WITHOUT_END, Fault.KL_INVERTED])
def test_a_fault_trains_something_else(tiny_folder, with_kl, fault):
    _, steps = with_kl
    right, _ = loop_run(tiny_folder, steps, WITH_KL)
    wrong, _ = loop_run(tiny_folder, steps, replace(WITH_KL, faults=frozenset([fault])))
    assert largest_difference(right, wrong) > 1e-4


def test_padding_in_the_mean_weighs_short_completions_less():
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])
    zeros = torch.zeros(2, 4)
    advantages = torch.tensor([-1.0, 0.0])
    right = loss_of(zeros, zeros, None, advantages, mask, SETTINGS)
    faulty = replace(SETTINGS, faults=frozenset([Fault.PADDING_IN_MEAN]))
    wrong = loss_of(zeros, zeros, None, advantages, mask, faulty)
    assert right == pytest.approx(1 / 2)
    assert wrong == pytest.approx(1 / 2 / 4)


def test_summed_micro_batches_multiply_the_gradient(tiny_folder, plain):
    _, steps = plain
    _, right = loop_run(tiny_folder, steps[:1], SETTINGS)
    faults = frozenset([Fault.SUMMED_MICRO_BATCHES])
    _, wrong = loop_run(tiny_folder, steps[:1], replace(SETTINGS, faults=faults))
    assert wrong[0]["grad_norm"] == pytest.approx(2 * right[0]["grad_norm"], rel=1e-4)


def test_truncated_log_probs_are_those_of_the_sampling_policy(tiny_folder):
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    settings = replace(SETTINGS, top_k=5, top_p=0.8)
    torch.manual_seed(0)
    rollout = sample(model, tokenizer, ["Use 1 and 2.", "Use 3, 4 and 5."] * 4, settings)
    logps = per_token_logps(model, rollout, settings)
    logits = model(rollout.ids, attention_mask=rollout.attention_mask).logits[:, -13:-1]
    for row, column in rollout.completion_mask.nonzero().tolist():
        probabilities = logits[row, column].softmax(dim=-1).sort(descending=True)
        allowed = []
        mass = 0.0
        top = probabilities.values[:5] / probabilities.values[:5].sum()
        for probability, token in zip(
            top.tolist(), probabilities.indices[:5].tolist(), strict=True
        ):
            if mass < 0.8:
                allowed.append((token, probability))
            mass += probability
        total = sum(probability for _, probability in allowed)
        token = int(rollout.ids[row, column - 12])
        assert math.exp(logps[row, column]) == pytest.approx(dict(allowed)[token] / total, rel=1e-4)


def test_any_of_several_answers_is_enough_for_the_faulty_reward():
    problem = Problem("", [1, 2, 3], 6)
    text = "<think>\n\n</think>\n<answer>\n1 + 2\n</answer>\n<answer>\n1 + 2 + 3\n</answer>"
    [right] = rewards_of([text], [problem], SETTINGS).tolist()
    faulty = replace(SETTINGS, faults=frozenset([Fault.ANY_ANSWER]))
    [wrong] = rewards_of([text], [problem], faulty).tolist()
    assert wrong == right + 1
