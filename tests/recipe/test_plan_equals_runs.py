"""The planner's numbers are those of the real trainer.

Its data loader, its loop, its checkpoints and evaluations.
"""

from __future__ import annotations

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, TrainerCallback

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.recipe.rules import flat_values
from grpo_ext.recipe.run_plan import make_plan
from grpo_ext.tiny.model import build_model

ONE_EACH = [{"role": "user", "content": "Hi"}]


@st.composite
def plans(draw, small=False):
    """Settings that TRL takes: whole groups and whole micro-batches."""
    group = draw(st.sampled_from([2, 3, 4]))
    size = draw(st.sampled_from([1, 2, 3, 4, 6] if not small else [2, 4]))
    values = {
        "num_generations": group,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": draw(st.integers(1, 3 if small else 6)),
        "num_iterations": draw(st.integers(1, 3)),
    }
    slices = draw(st.sampled_from(["", "steps_per_generation", "generation_batch_size"]))
    if slices == "steps_per_generation":
        values[slices] = draw(st.integers(1, 6))
    elif slices:
        values[slices] = size * draw(st.integers(1, 6))
    completions = values.get("generation_batch_size") or size * values.get(
        "steps_per_generation", values["gradient_accumulation_steps"]
    )
    assume(completions % group == 0)
    if draw(st.booleans()):
        values["max_steps"] = draw(st.integers(1, 8 if small else 60))
    else:
        values["num_train_epochs"] = draw(
            st.sampled_from([0.4, 1, 1.5, 2, 3] if not small else [0.5, 1, 2])
        )
    values["warmup_steps"] = draw(st.sampled_from([0, 0.1, 0.35, 3]))
    values["save_strategy"] = draw(st.sampled_from(["no", "steps", "epoch"]))
    values["save_steps"] = draw(st.sampled_from([1, 2, 5, 0.3]))
    values["eval_strategy"] = draw(st.sampled_from(["no", "steps", "epoch"]))
    values["eval_steps"] = draw(st.sampled_from([None, 1, 3, 0.4]))
    values["eval_delay"] = draw(st.sampled_from([0, 0, 2]))
    values["eval_on_start"] = values["eval_strategy"] != "no" and draw(st.booleans())
    values["logging_steps"] = draw(st.sampled_from([1, 2]))
    rows = draw(st.integers(completions // group, 12 if small else 60))
    return values, rows


class Counter(TrainerCallback):
    """What a run really did."""

    def __init__(self):
        self.steps, self.saved, self.evaluations = 0, [], 0

    def on_step_end(self, args, state, control, **kwargs):
        self.steps += 1

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        self.evaluations += 1


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")


@pytest.fixture(scope="module")
def model(tokenizer):
    return build_model(tokenizer, hidden_size=8, intermediate_size=8, num_attention_heads=2)


def make_trainer(model, tokenizer, folder, values, rows, generated=None):
    def reward(prompts, **kwargs):
        if generated is not None:
            generated.append((len(prompts), {prompt[0]["content"] for prompt in prompts}))
        return [float(i % 2) for i in range(len(prompts))]

    data = [{"prompt": [{"role": "user", "content": str(i)}]} for i in range(rows)]
    args = GRPOExtConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to="none",
        max_completion_length=2,
        eval_temperature=0,
        per_device_eval_batch_size=12,
        gradient_checkpointing=False,
        disable_tqdm=True,
        **values,
    )
    held_out = (
        Dataset.from_list([{"prompt": ONE_EACH}]) if values["eval_strategy"] != "no" else None
    )
    return GRPOExtTrainer(
        model, [reward], args, Dataset.from_list(data), held_out, processing_class=tokenizer
    )


def plan_of(values, rows):
    flat = flat_values({"training": {**values, "eval_temperature": 0}}, {"training": GRPOExtConfig})
    return make_plan(flat, 1, rows, 1)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans())
def test_steps_are_those_of_the_data_loader(model, tokenizer, tmp_path_factory, drawn):
    values, rows = drawn
    plan = plan_of(values, rows)
    trainer = make_trainer(model, tokenizer, tmp_path_factory.getbasetemp() / "plan", values, rows)
    loader = trainer.get_train_dataloader()
    _, per_epoch, *_, batches, steps = trainer.set_initial_training_values(trainer.args, loader)
    assert len(loader) == batches == plan.generations_per_epoch * plan.batch.passes
    assert (per_epoch, steps) == (plan.steps_per_epoch, plan.steps)
    assert trainer.args.get_warmup_steps(steps) == plan.warmup_steps
    assert (trainer.args.generation_batch_size, trainer.args.steps_per_generation) == (
        plan.batch.completions,
        plan.batch.slices,
    )
    repeats = trainer.num_generations * plan.batch.passes
    assert len(loader.batch_sampler.sampler) == (rows - plan.rows_dropped) * repeats


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(plans(small=True))
def test_runs_do_what_the_plan_says(model, tokenizer, tmp_path_factory, drawn):
    values, rows = drawn
    plan = plan_of(values, rows)
    assume(plan.steps <= 24)
    generated = []
    counter = Counter()
    trainer = make_trainer(
        model, tokenizer, tmp_path_factory.mktemp("run"), values, rows, generated
    )
    trainer.add_callback(counter)
    trainer.train()
    evaluated = counter.evaluations
    assert counter.steps == trainer.state.global_step == plan.steps
    assert tuple(counter.saved) == plan.checkpoints
    assert evaluated == plan.evaluations
    assert trainer.state.epoch == pytest.approx(plan.epochs)
    training = [(count, prompts) for count, prompts in generated if prompts != {"Hi"}]
    assert len(training) == plan.generations
    assert {count for count, _ in training} == {plan.batch.completions}
    assert {len(prompts) for _, prompts in training} == {plan.batch.prompts}


def test_an_epoch_of_many_rows():
    values = {
        "num_generations": 8,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 8,
    }
    flat = flat_values({"training": {**values, "num_train_epochs": 1}}, {"training": GRPOExtConfig})
    plan = make_plan(flat, 2, 50_000)
    assert plan.steps == 3125
    assert (plan.batch.prompts, plan.batch.completions, plan.rows_dropped) == (16, 128, 0)


def test_too_few_rows_are_refused():
    flat = flat_values(
        {"training": {"gradient_accumulation_steps": 4}}, {"training": GRPOExtConfig}
    )
    with pytest.raises(ValueError, match="3 training rows cannot fill a generation of 4 prompts"):
        make_plan(flat, 1, 3)


def test_a_stream_has_steps_alone():
    flat = flat_values(
        {"training": {"max_steps": 7, "num_iterations": 2}}, {"training": GRPOExtConfig}
    )
    plan = make_plan(flat, 1, None)
    assert (plan.steps, plan.generations, plan.epochs, plan.rows_dropped) == (7, 4, None, None)
