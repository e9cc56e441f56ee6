"""A run in which the model calls a tool in the form of Llama 3, Gemma 4 or gpt-oss."""

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.samplers.lockstep_episodes import Turn, play_by_turns
from tests.support.call_formats import GPT_OSS, gemma, llama, multiply
from tests.support.tiny_run import arguments_of

ROWS = [{"prompt": [{"role": "user", "content": f"What is {a} times 4?"}]} for a in range(1, 9)]


class Calling(Sampler):
    """Calls the tool in every other completion, and then ends."""

    name = "scripted"
    abilities = SamplerAbilities(plays_episodes=True)

    def __init__(self, tokenizer, form):
        self.tokenizer, self.form = tokenizer, form

    def sample(self, request):
        rounds = []

        def turn(contexts, left):
            rounds.append(len(contexts))
            turns = []
            for number in range(len(contexts)):
                text = self.form.say("5")
                if len(rounds) == 1 and number % 2:
                    text = self.form.call("multiply", {"a": 3, "b": 4})
                ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
                turns.append(Turn(ids, [None] * len(ids)))
            return turns

        return play_by_turns(request, turn)


class Noting(GRPOExtTrainer):
    """Keeps the micro-batches that it trains on."""

    used = ()

    def _compute_loss(self, model, inputs):
        self.used = [*self.used, inputs]
        return super()._compute_loss(model, inputs)


def called(completions, **kwargs):
    return [float(len(messages) > 1) for messages in completions]


@pytest.mark.parametrize(
    "form", [llama("llama3_2"), gemma("gemma4_v5"), GPT_OSS], ids=lambda form: form.template
)
def test_our_sampler_plays_the_calls(form, tiny_folder, tmp_path):
    tokenizer = form.tokenizer(tiny_folder)
    ends = form.end_tokens(tokenizer)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    model.resize_token_embeddings(len(tokenizer))
    model.config.eos_token_id = ends
    model.generation_config.eos_token_id = ends
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    args = arguments_of(GRPOExtConfig, tmp_path / "run", max_completion_length=120, max_steps=1)
    trainer = Noting(
        str(tmp_path / "model"),
        [called],
        args,
        Dataset.from_list(ROWS),
        processing_class=tokenizer,
        sampler=Calling(tokenizer, form),
        tools=[multiply],
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["tools/call_frequency"] == logged["rewards/called/mean"] == 0.5
    assert logged["tools/failure_frequency"] == 0 and logged["episodes/turns"] == 1.5
    rows = trainer.used[0].rows
    call = form.call("multiply", {"a": 3, "b": 4})
    for ids, is_real, is_turn in zip(
        rows.completion_ids, rows.completion_mask.bool(), rows.tool_mask.bool(), strict=True
    ):
        own = tokenizer.decode(ids[is_real & is_turn])
        told = tokenizer.decode(ids[is_real & ~is_turn])
        assert own in (form.say("5"), call + form.say("5"))
        assert ("12" in told) == (call in own)
