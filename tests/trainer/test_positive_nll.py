"""The supervised term on right completions.

Its gradient, its metric, and which completions it has.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import load_recipe
from grpo_ext.recipe.problems import RecipeError
from tests.support.oracle import token_logps
from tests.support.scripted_groups import GROUP, fixed_completion, prompt_of, solved, train

COEF = 0.5
MIXED = 2.0  # a threshold that some completions of prompt 1 reach
SUM_IS_OUTCOME = {"reward_weights": [1.0, 0.0]}


def right_rows(folder, numbers, least=1.0, each=GROUP):
    """Return the right completions of these prompts as pairs of prompt and completion, in tokens.

    `each` is the number of completions of a prompt.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for number in numbers:
        prompt = tokenizer(prompt_of(number))["input_ids"]
        group = [
            fixed_completion(prompt, n, len(tokenizer), tokenizer.eos_token_id) for n in range(each)
        ]
        scores = solved(group, group, [number] * each)
        rows += [(prompt, x) for x, score in zip(group, scores, strict=True) if score >= least]
    return rows


def nll_of(model, rows):
    """Return the mean negative log-likelihood per token, one completion at a time."""
    logps = [logp for prompt, completion in rows for logp in token_logps(model, prompt, completion)]
    return -torch.stack([logp for logp in logps if logp is not None]).mean()


def gradient_of_nll(folder, weights, rows):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    nll = nll_of(model, rows)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(nll, parameters, allow_unused=True)
    return dict(zip(names, gradients, strict=True)), float(nll.detach())


def check_difference(folder, with_term, without, rows):
    """Compare the gradients of the first step of two runs, of which one has the term; return its
    mean.
    """
    (gradient, weights), (plain, _) = with_term[0], without[0]
    wanted, nll = gradient_of_nll(folder, weights, rows)
    for name, exact in wanted.items():
        got = gradient[name] - plain.get(name, torch.zeros(()))
        assert torch.allclose(got, COEF * exact, atol=2e-6, rtol=1e-4), name
    return nll


# Of prompts 1 to 4, number 2 is all wrong and number 3 all right.
@pytest.mark.parametrize("ga", [1, 4])
@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"loss_type": "grpo"}, [1, 2, 3, 4]),
        ({"loss_type": "dapo", "beta": 0.1, "advantage_normalizer": "useful"}, [1, 2, 3, 4]),
        ({"loss_type": "dr_grpo", "group_filter": "drop"}, [1, 4]),
        ({"max_tokens_per_micro_batch": 60, "skip_dead_rows": False}, [1, 2, 3, 4]),
        ({"pass_threshold": MIXED}, [1, 2, 3, 4]),
    ],
)
def test_the_gradient_is_that_of_the_mean_over_right_tokens(
    tiny_folder, tmp_path, ga, settings, numbers
):
    settings = {**settings, **SUM_IS_OUTCOME, "ga": ga}
    _, without = train(tiny_folder, tmp_path / "a", **settings)
    trainer, steps = train(tiny_folder, tmp_path / "b", positive_nll_coef=COEF, **settings)
    rows = right_rows(tiny_folder, numbers, settings.get("pass_threshold", 1.0))
    nll = check_difference(tiny_folder, steps, without, rows)
    assert trainer.state.log_history[0]["positive_nll"] == pytest.approx(nll, rel=1e-4)


def test_a_group_that_is_all_right_is_run_and_learned_from(tiny_folder, tmp_path):
    """Its rows have no advantage, and are skipped without the term."""
    settings = {**SUM_IS_OUTCOME, "numbers": [3] * 12}
    quiet, without = train(tiny_folder, tmp_path / "a", **settings)
    assert all(float(grad.abs().max()) == 0 for grad in without[0][0].values())
    assert "Nothing was learned" in quiet.learned_nothing
    trainer, steps = train(tiny_folder, tmp_path / "b", positive_nll_coef=COEF, **settings)
    rows = right_rows(tiny_folder, [3], each=4 * GROUP)
    assert len(rows) == 4 * GROUP
    check_difference(tiny_folder, steps, without, rows)
    assert trainer.learned_nothing is None


def test_without_a_right_completion_the_term_is_0(tiny_folder, tmp_path):
    settings = {**SUM_IS_OUTCOME, "pass_threshold": 1000.0}
    _, without = train(tiny_folder, tmp_path / "a", **settings)
    trainer, steps = train(tiny_folder, tmp_path / "b", positive_nll_coef=COEF, **settings)
    for name, exact in without[0][0].items():
        assert torch.equal(steps[0][0][name], exact), name
    assert "positive_nll" not in trainer.state.log_history[0]


def test_the_term_scores_under_the_policy_that_sampled(tiny_folder, tmp_path):
    """At a temperature of 2 it is the likelihood under that temperature."""
    settings = {**SUM_IS_OUTCOME, "temperature": 2.0, "positive_nll_coef": COEF}
    trainer, _ = train(tiny_folder, tmp_path, **settings)
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    rows = right_rows(tiny_folder, [1, 2, 3, 4])
    total = 0.0
    tokens = 0
    with torch.no_grad():
        for prompt, completion in rows:
            if completion:
                logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
                logps = (logits[len(prompt) - 1 : -1] / 2).log_softmax(-1)
                total -= float(logps.gather(1, torch.tensor(completion).view(-1, 1)).sum())
                tokens += len(completion)
    assert trainer.state.log_history[0]["positive_nll"] == pytest.approx(total / tokens, rel=1e-4)


def test_what_cannot_have_the_term_is_refused():
    recipe = {"model_name_or_path": "m", "positive_nll_coef": 0.1}
    assert load_recipe(None, recipe).training.positive_nll_coef == 0.1
    for more, said in (
        (
            {"loss_normalization": "micro_batch"},
            "`positive_nll_coef: 0.1` needs `loss_normalization: step`",
        ),
        ({"positive_nll_coef": -0.1}, "positive_nll_coef"),
    ):
        with pytest.raises(RecipeError, match=said):
            load_recipe(None, {**recipe, **more})


def test_the_scripted_rewards_have_right_and_wrong_completions(tiny_folder):
    """Else the tests above could not fail."""
    assert 0 < len(right_rows(tiny_folder, [1], MIXED)) < GROUP
    assert len(right_rows(tiny_folder, [2])) == 0
