"""`overlap: one_step`.

Completions of the weights before, and exact gradients.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from grpo_ext.observe.jsonl import read
from grpo_ext.recipe.objective_options import LOSSES
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.rewards.guard import RewardFailure
from grpo_ext.step.feed import BatchesAhead
from grpo_ext.vllm import EngineFailure
from tests.support import overlap_run
from tests.support.forked import on_ranks
from tests.support.logs import metric_values
from tests.support.model_with_weights import model_of
from tests.support.oracle import loss_of_step, token_logps

pytestmark = pytest.mark.usefixtures("sampler_forks")
BIG_CAP = {"vllm_importance_sampling_clip_max": 1e9}  # no weight is cut


def test_batches_are_seen_before_their_turn_and_given_once():
    ahead = BatchesAhead()
    source = iter("abcd")
    assert ahead.of(source).peek(1) == "b"
    assert (
        next(ahead.of(source)) == "a"
        and ahead.peek(0) == "b"
        and ahead.peek(2) == "d"
        and ahead.peek(3) is None
    )
    assert list(ahead.of(source)) == ["b", "c", "d"]
    assert list(ahead.of(iter("xy"))) == ["x", "y"]


def rows_of(parts):
    for part in parts:
        for i in range(len(part)):
            prompt = part.prompt_ids[i][part.prompt_mask[i].bool()].tolist()
            yield part, i, prompt, part.completion_ids[i][part.completion_mask[i].bool()].tolist()


def logps_by_version(models, versions, prompt, completion):
    """Each token's log-prob by the weights of its own step."""
    with torch.no_grad():
        scored = {
            version: token_logps(models(version), prompt, completion) for version in set(versions)
        }
    return [scored[version][t] for t, version in enumerate(versions)]


def versions_of(part, i):
    return part.policy_step[i][part.completion_mask[i].bool()].tolist()


def check_samples(folder, steps):
    """Each token was sampled after its prompt and earlier tokens, by its step's weights."""
    for noted in steps.values():
        for part, i, prompt, completion in rows_of(noted["used"]):
            wanted = logps_by_version(
                lambda version: model_of(folder, steps[version]["weights"]),
                versions_of(part, i),
                prompt,
                completion,
            )
            assert torch.allclose(
                part.sampling_per_token_logps[i, : len(wanted)], torch.stack(wanted), atol=1e-5
            )


def test_completions_are_of_the_weights_before(tiny_folder, tmp_path):
    trainer = overlap_run.make(tiny_folder, tmp_path)
    trainer.train()
    check_samples(tiny_folder, trainer.steps)
    for step, noted in trainer.steps.items():
        assert all((part.policy_step == max(0, step - 1)).all() for part in noted["used"])
    logged = trainer.state.log_history
    assert [row["overlap/age"] for row in logged if "overlap/age" in row] == [0.0, 1.0, 1.0, 1.0]
    timed = [row for row in logged if row.get("overlap/age")]
    assert all(row["time/waiting"] > 0 and row["sampling/generation_time"] > 0 for row in timed)


def test_the_age_of_tokens_counts_further_updates_on_a_generation(tiny_folder, tmp_path):
    """Of the tokens that each step trained on, in the log, for the alarm, and in the lines of
    completions.
    """
    updates = {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "num_iterations": 2}
    rules = {"health_rules": {"age": 3.5}, "log_tokens": True}
    trainer = overlap_run.make(
        tiny_folder, tmp_path, max_steps=12, learning_rate=1e-3, **updates, **rules
    )
    trainer.train()
    logged = metric_values(trainer, "overlap/age")
    assert logged == [0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
    for step, noted in trainer.steps.items():
        ages = [step - part.policy_step[part.loss_mask.bool()] for part in noted["used"]]
        assert torch.cat(ages).float().mean() == logged[step]
    tokens = [(row["step"], row["tokens"]) for row in read(tmp_path / "samples.jsonl")]
    ages = {step: ({*found["age"]}, {*found["last_age"]}) for step, found in tokens}
    assert ages == {1: ({0}, {3}), 5: ({4}, {7}), 9: ({4}, {7})}
    alarms = [row for row in read(tmp_path / "metrics.jsonl") if row.get("alarm") == "age"]
    assert len(alarms) == 1 and alarms[0]["value"] > 3.5


PARTIAL = {"group_filter": "off", "partial_rollouts": 2}
SETTINGS = {
    "sampler": {"behaviour_policy": "sampler"},
    "decoupled": BIG_CAP,
    "sampler, partial": {"behaviour_policy": "sampler", **PARTIAL},
    "decoupled, partial": {**BIG_CAP, **PARTIAL},
}
CASES = [
    pytest.param(
        ranks, loss, policy, marks=[] if (ranks, loss) == (1, "dapo") else pytest.mark.slow
    )
    for ranks, losses in ((1, LOSSES), (2, ("grpo", "dapo")))
    for loss in losses
    for policy in SETTINGS
]


@pytest.mark.parametrize("ranks, loss_type, policy", CASES)
def test_the_gradient_of_rows_of_two_versions(tiny_folder, tmp_path, ranks, loss_type, policy):
    """Groups that were carried over, groups that were under way, and completions that went on,
    against the formula by token.
    """
    high = {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    settings = {
        "group_filter": "refill",
        "max_staleness": 3,
        "loss_type": loss_type,
        **SETTINGS[policy],
        **high,
    }
    rate = 0.1 if loss_type == "luspo" else overlap_run.LR  # its loss is a sum over tokens
    settings |= {"per_device_train_batch_size": 16 // ranks, "max_steps": 5, "learning_rate": rate}
    on_ranks(ranks, overlap_run.train, tiny_folder, tmp_path, settings)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
    steps = found[0]["steps"]
    mixed = 0
    models = [model_of(tiny_folder, noted["weights"]) for noted in steps.values()]
    for step in steps:
        parts = [part for rank in found for part in rank["steps"][step]["used"]]
        versions = [tuple(versions_of(part, i)) for part in parts for i in range(len(part))]
        mixed += (
            any(len(set(row)) > 1 for row in versions)
            if "partial" in policy
            else len({row[:1] for row in versions}) > 1
        )
        model = models[step]
        rows = []
        for part, i, prompt, completion in rows_of(parts):
            versions = versions_of(part, i)
            if not completion:
                rows.append(
                    {
                        "logps": [],
                        "old": [],
                        "advantage": 0.0,
                        "masked": not bool(part.counted[i]),
                        "useful": True,
                    }
                )
                continue
            sampled = logps_by_version(models.__getitem__, versions, prompt, completion)
            with torch.no_grad():  # what was sampled while the trainer trained is scored later
                scored = [
                    token_logps(models[v], prompt, completion)
                    for v in range(versions[-1], step + 1)
                ]
            old = part.old_per_token_logps[i, : len(completion)].unbind()
            wanted = [sampled] if "sampler" in policy else scored
            assert any(
                torch.allclose(torch.stack(old), torch.stack(logps), atol=1e-5) for logps in wanted
            )
            weights = [torch.exp(o - s) for o, s in zip(old, sampled, strict=True)]
            rows.append(
                {
                    "logps": token_logps(model, prompt, completion),
                    "old": old,
                    "weights": None if "sampler" in policy else weights,
                    "advantage": float(part.advantages[i]),
                    "masked": not bool(part.counted[i]),
                    "useful": True,
                }
            )
        loss = loss_of_step(loss_type, rows, max_length=6, high=high.get("epsilon_high", 0.2))
        names, parameters = zip(*model.named_parameters(), strict=True)
        wanted = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
        after = steps[step + 1]["weights"] if step + 1 in steps else found[0]["last"]
        largest = max(float(g.abs().max()) for g in wanted.values())
        for name, gradient in wanted.items():
            before = steps[step]["weights"][name]
            rounding = torch.finfo(before.dtype).eps * max(1.0, float(before.abs().max())) / rate
            moved = (before - after[name]) / rate
            assert (moved - gradient).abs().max() <= 1e-5 * largest + 2 * rounding, (step, name)
    assert mixed


@pytest.mark.parametrize(
    "settings", [{}, {"group_filter": "refill"}, {"partial_rollouts": 3}], ids=str
)
def test_each_epoch_has_each_prompt_once(tiny_folder, tmp_path, settings):
    seen = []

    def noting(completions, prompts, **kwargs):
        seen.extend(prompts)
        return [float(i % 2) for i in range(len(completions))]  # every group has signal

    overlap_run.make(tiny_folder, tmp_path, noting, prompts=6, max_steps=8, **settings).train()
    epochs = [set(seen[start : start + 24]) for start in range(0, 48, 24)]
    assert list(map(len, epochs)) == [6, 6] and len(seen) == 8 * 8


def failing(after):
    """A reward that fails from one of its calls on."""
    calls = []

    def reward(completions, **kwargs):
        calls.append(1)
        if len(calls) >= after:  # the guard asks again row by row
            raise RuntimeError("no")
        return overlap_run.letters(completions)

    return reward


@pytest.mark.parametrize("settings", [{}, {"partial_rollouts": 2}], ids=str)
def test_a_run_that_failed_goes_on_with_the_right_prompts(tiny_folder, tmp_path, settings):
    """The checkpoint of a failed reward has the next generation, while the present one is made
    again.
    """
    settings |= {"max_steps": 5}
    strict = {"reward_max_failure_rate": 0.0, **settings}
    first = overlap_run.make(tiny_folder, tmp_path, failing(3), **strict)
    with pytest.raises(RewardFailure):
        first.train()
    again = overlap_run.make(tiny_folder, tmp_path, **settings)
    again.train(True)
    assert again.state.global_step == 5 and min(again.steps) == 2
    check_samples(tiny_folder, again.steps)


@pytest.mark.parametrize("where", ["probe", "collect"])  # as it is asked, and as it samples
def test_prompts_drawn_for_a_sampler_that_fails_are_neither_lost_nor_trained_twice(
    tiny_folder, tmp_path, where
):
    seen = []
    calls = []

    def noting(completions, prompts, **kwargs):
        seen.extend(prompts)
        return overlap_run.letters(completions)

    settings = {
        "group_filter": "refill",
        "max_steps": 5,
        "prompts": 400,
    }  # so many that refill draws none of the loader's
    first = overlap_run.make(tiny_folder, tmp_path, **settings)
    plain = getattr(first.parts.sampler, where)

    def failing(*request):
        calls.append(where)
        if len(calls) == 3:
            raise EngineFailure("gone")
        return plain(*request)

    setattr(first.parts.sampler, where, failing)
    with pytest.raises(EngineFailure, match="gone"):
        first.train()
    step = first.state.global_step
    again = overlap_run.make(tiny_folder, tmp_path, noting, **settings)
    again.train(True)
    rows = [row["prompt"] for row in first.train_dataset]
    order = [rows[i] for i in first.parts.order.make_sampler(None)][::4][
        2 * step : 10
    ]  # num_generations 4, two prompts a step
    assert order and {seen.count(prompt) for prompt in order} == {4}


def test_training_again_after_an_error_forgets_what_was_under_way(tiny_folder, tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3 and not self.raised:
                self.raised = True
                raise KeyError("a callback")

        raised = False

    trainer = overlap_run.make(
        tiny_folder, tmp_path, save_strategy="steps", save_steps=2, max_steps=5
    )
    trainer.add_callback(Stop())
    with pytest.raises(KeyError):
        trainer.train()
    trainer.train(True)
    assert trainer.state.global_step == 5
    check_samples(tiny_folder, trainer.steps)


def test_an_adapter_with_gradient_checkpointing(tiny_folder, tmp_path):
    for task in (None, "CAUSAL_LM"):  # two classes of peft
        peft = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type=task)
        trainer = overlap_run.make(
            tiny_folder, tmp_path, peft=peft, gradient_checkpointing=True, max_steps=3
        )
        trainer.train()
        first = trainer.state.log_history[0]
        assert first["sampling/logp_difference/max"] < 1e-4 and first["completions/max_length"] <= 6


def test_other_sizes_begin_anew_with_what_was_under_way(tiny_folder, tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 5}
    overlap_run.make(
        tiny_folder, tmp_path, partial_rollouts=2, **settings | {"max_steps": 3}
    ).train()
    trainer = overlap_run.make(
        tiny_folder, tmp_path, partial_rollouts=3, num_generations=2, **settings
    )
    trainer.train(str(tmp_path / "checkpoint-2"))
    check_samples(tiny_folder, {step: trainer.steps[step] for step in trainer.steps})
    assert min(trainer.steps) == 2
    sampler = trainer.parts.generations.ahead.sampler
    assert sampler.tokens == 3 and sampler.size == 2


def test_a_sampler_that_dies_again_and_again_ends_the_run(tiny_folder, tmp_path):
    trainer = overlap_run.make(tiny_folder, tmp_path)
    trainer.parts.sampler._start = replace(
        trainer.parts.sampler._start, model=b""
    )  # no process can begin with it
    with pytest.raises(EngineFailure, match=r"A sampler process failed.* The failure: EOFError"):
        trainer.train()
    trainer = overlap_run.make(tiny_folder, tmp_path)
    plain = trainer.parts.sampler._send
    calls = []

    def send():
        calls.append(1)
        if (
            len(calls) == 3
        ):  # of a generation under way: the second one is of the check of the weights
            trainer.parts.sampler._end()
            exits = b"cos\n_exit\n(I1\ntR."  # a pickle that ends the process which reads it
            trainer.parts.sampler._start = replace(trainer.parts.sampler._start, model=exits)
        plain()

    trainer.parts.sampler._send = send
    with pytest.raises(EngineFailure, match="process failed 3 times, because it ran out of memory"):
        trainer.train()
    assert overlap_run.make(tiny_folder, tmp_path).newest_checkpoint().endswith("checkpoint-1")


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"sampler": None}, "needs a separate sampler"),
        (
            {"gradient_accumulation_steps": 3, "steps_per_generation": 1},
            "multiple of gradient_accumulation_steps",
        ),
        ({"vllm_importance_sampling_correction": False}, "completions of older weights"),
        ({"logprob_policy": "model"}, "needs `logprob_policy: sampling`"),
        ({"sampler": None, "use_vllm": True, "vllm_mode": "colocate"}, "shares one"),
        (
            {"sampler": None, "use_vllm": True, "vllm_mode": "server", "top_p": 0.9},
            "vLLM returns only together with top_k",
        ),
        (
            {
                "sampler": None,
                "use_vllm": True,
                "overlap": "off",
                "behaviour_policy": "sampler",
                "top_k": 5,
            },
            "vLLM returns only on a GPU",
        ),
        ({"environment": "guess"}, "does not support environment"),
        (
            {"partial_rollouts": 4},
            "4 does not divide 6. Set, for example, `max_completion_length: 8`",
        ),
        ({"partial_rollouts": 3, "overlap": "off"}, "needs `overlap: one_step`"),
        ({"partial_rollouts": 3, "group_filter": "refill"}, "needs `group_filter: drop`"),
        (
            {"partial_rollouts": 3, "generation_kwargs": {"stop_strings": ["x"]}},
            "would apply to each round, not to the completion: stop_strings",
        ),
        (
            {"partial_rollouts": 3, "generation_kwargs": {"seed": 1, "forced_eos_token_id": 2}},
            "to the completion: forced_eos_token_id, seed",
        ),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_exact_is_refused(tiny_folder, tmp_path, settings, words):
    with pytest.raises(RecipeError, match=words):
        overlap_run.make(tiny_folder, tmp_path, **settings)
