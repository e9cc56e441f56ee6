"""Seconds by phase, tokens per second and the share of the matrix rate, against clocks and counts
of others.
"""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    TrainerState,
)
from trl.trainer import grpo_trainer

from grpo_ext import Environment, GRPOExtTrainer
from grpo_ext.common import stopwatch
from grpo_ext.step.records import Scored
from grpo_ext.trainer import phases
from grpo_ext.trainer.phases import costs, needed
from tests.support.logs import entries_with
from tests.support.tiny_run import tiny_arguments, tiny_trainer

STEPS = 3
# seconds by the clock of the run
REWARD = 100.0
FORWARD = 1.0
UPDATE = 10.0
RESET = 1000.0
ANSWER = 300.0


class Clock:
    """A clock that only the work of a run moves, so that it knows how long each phase takes."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def move(self, seconds):
        self.now += seconds


@pytest.fixture(scope="module")
def run(tiny_folder, tmp_path_factory):
    """The log of a run with an evaluation, its seconds by its clock, and its tokens."""
    clock = Clock()

    def reward(completions, **columns):
        """Differs within a group."""
        clock.move(REWARD)
        return [float(i % 2) for i, _ in enumerate(completions)]

    args = tiny_arguments(
        tmp_path_factory.mktemp("phases"),
        max_completion_length=6,
        max_steps=STEPS,
        learning_rate=1e-3,
        beta=0.04,
        eval_strategy="steps",
        eval_steps=1,
        num_generations_eval=4,
        per_device_eval_batch_size=8,
    )
    rows = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"Use {a}, 2, 3 to make 9."}]}
            for a in range(1, 9)
        ]
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "time", clock)
        patch.setattr(grpo_trainer, "time", clock)  # TRL's own clock of a step
        trainer = GRPOExtTrainer(
            str(tiny_folder),
            [reward],
            args,
            rows,
            rows.select(range(2)),
            processing_class=tokenizer,
        )
        for model in (trainer.model, trainer.ref_model):
            model.register_forward_pre_hook(lambda *_: clock.move(FORWARD))
        trainer.create_optimizer()
        trainer.optimizer.register_step_pre_hook(lambda *_: clock.move(UPDATE))
        trainer.train()
    log = entries_with(trainer, "loss")
    return log, clock.now, trainer.state.num_input_tokens_seen


def test_each_step_says_where_its_time_went(run):
    log, whole, _ = run
    assert len(log) == STEPS
    for row in log:
        assert row["time/rewards"] == REWARD and row["time/optimizer"] == UPDATE
        for name in ("generation", "scoring", "train"):
            passes = row[f"time/{name}"] / FORWARD
            assert passes >= 1 and passes == int(passes)
        inside = ("rewards", "generation", "scoring", "train")
        # TRL's clock counts all but the optimizer
        assert sum(row[f"time/{name}"] for name in inside) == row["step_time"]
    logged = sum(value for row in log for key, value in row.items() if key.startswith("time/"))
    last_evaluation = whole - logged  # it comes after the last log of a step
    assert last_evaluation >= REWARD + FORWARD


def test_what_belongs_to_an_evaluation_is_not_in_a_step(run):
    log, _, _ = run
    assert "time/evaluation" not in log[0]
    assert all(row["time/evaluation"] >= REWARD + FORWARD for row in log[1:])


def test_tokens_per_second_are_those_of_the_steps(run):
    log, _, tokens = run
    seconds = [row["step_time"] + UPDATE for row in log]
    rates = [row["throughput/tokens_per_second"] for row in log]
    made = sum(rate * time for rate, time in zip(rates, seconds, strict=True))
    assert made == pytest.approx(tokens)
    assert all(row["throughput/share_of_rate"] > 0 and row["memory/peak_gib"] > 0.05 for row in log)


def test_an_environment_has_a_phase_of_its_own(tiny_folder, tmp_path, monkeypatch):
    clock = Clock()

    class Slow(Environment):
        def reset(self, row):
            clock.move(RESET)
            self.turns = 0
            self.score = 0.0

        def step(self, text):
            clock.move(ANSWER)
            self.turns += 1
            self.score += len(text) % 3
            return "go on", self.turns == 3

    monkeypatch.setitem(globals(), "Slow", Slow)
    monkeypatch.setattr(phases, "time", clock)
    monkeypatch.setattr(stopwatch, "time", clock)
    args = tiny_arguments(
        tmp_path,
        environment={"name": f"{__name__}:Slow", "turn_tokens": 4},
        max_completion_length=60,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=8,
        num_generations_eval=4,
    )
    prompts = [{"prompt": [{"role": "user", "content": f"Use {n}."}]} for n in range(8)]
    rows = Dataset.from_list(prompts)
    trainer = tiny_trainer(
        tiny_folder, ["environment"], args, rows, eval_dataset=rows.select(range(2))
    )
    trainer.model.register_forward_pre_hook(lambda *_: clock.move(FORWARD))
    trainer.train()
    for row in entries_with(trainer, "loss"):
        assert row["time/environment"] == 8 * (RESET + 3 * ANSWER)
        assert row["time/generation"] / FORWARD >= 12
        assert row["time/generation"] < RESET
    evaluated = entries_with(trainer, "time/evaluation")
    assert evaluated[-1]["time/evaluation"] > 8 * (RESET + 3 * ANSWER)


def model_of(tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_operations_are_those_that_torch_counts(tied, lora):
    model = model_of(tied)
    prompt = 7
    completion = 12
    if lora:
        model = get_peft_model(
            model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
        )
        # the convention counts the gradient of the first layer's input
        model.enable_input_require_grads()
    ids = torch.randint(0, 50, (1, prompt + completion))
    with FlopCounterMode(display=False) as counter:
        model(ids, logits_to_keep=completion).logits.sum().backward()
    tokens = prompt + completion
    # torch counts attention over all pairs, and the head at `completion` positions
    mine = costs(model) @ torch.tensor([tokens, completion, tokens * tokens], dtype=torch.float64)
    assert float(mine) == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_a_token_runs_through_its_own_experts_alone():
    config = MixtralConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        attn_implementation="eager",
        experts_implementation="eager",  # torch does not count the operations of others
    )
    model = MixtralForCausalLM(config)
    tokens = 19
    with FlopCounterMode(display=False) as counter:
        model(torch.randint(0, 50, (1, tokens))).logits.sum().backward()
    counts = torch.tensor([tokens, tokens, tokens * tokens], dtype=torch.float64)
    assert float(costs(model) @ counts) == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_each_distinct_prompt_counts_once_and_padding_does_not():
    prompts = torch.tensor([[0, 5, 6], [0, 5, 6], [7, 8, 9]])
    masks = (
        torch.tensor([[0, 1, 1], [0, 1, 1], [1, 1, 1]]),
        torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]),
    )
    fill = torch.ones(3)
    rows = Scored(
        prompts,
        masks[0],
        torch.ones(3, 4, dtype=torch.long),
        masks[1],
        fill,
        fill,
        fill,
        fill,
        fill,
    )
    pairs = 2 * (2 + 1) + 3 * (2 + 1.5) + 1 * (3 + 0.5) + (4 + 9) / 2
    assert needed(rows).tolist() == [2 + 3 + 2 + 3 + 1, 6, pairs]


def test_a_phase_within_another_interrupts_it_and_all_within_an_evaluation_is_evaluation(
    monkeypatch,
):
    clock = iter(range(100))
    monkeypatch.setattr(phases.time, "perf_counter", lambda: next(clock))
    state = TrainerState()
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), mixed_precision="no", unwrap_model=lambda model: model
    )
    trainer = SimpleNamespace(state=state, accelerator=accelerator, model=model_of(tied=True))
    watch = phases.Phases(trainer)  # at 0
    with watch("train"), watch("generation"):  # from 1 and 2, to 4 and 3
        pass
    with watch("evaluation"), watch("generation"), watch("rewards"):  # 5 to 10
        pass
    assert watch.seconds == {"train": 2, "generation": 1, "evaluation": 5}
    assert watch.figures() == {}  # no step has ended
    state.global_step, state.num_input_tokens_seen = 2, 120
    found = watch.figures()  # at 11
    assert found.pop("memory/peak_gib") > 0
    assert found == {
        "time/train": 1,
        "time/generation": 0.5,
        "time/evaluation": 2.5,
        "throughput/tokens_per_second": 120 / (11 - 5),
    }
    assert watch.figures() == {}
