"""The tokens that a vLLM server's truncation kept: in old, new and reference policy, with several
updates, overlap and episodes.

The server is vLLM's in its routes and responses; the tiny model samples. The log-probs of every
token are compared with plain formulas.
"""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig
from transformers import AutoTokenizer

from grpo_ext.vllm import EngineFailure
from tests.support import overlap_run
from tests.support.kept_server import kept_server
from tests.support.logs import metric_values
from tests.support.places import REPO

CLOSE = {"rtol": 0, "atol": 2e-6}
# Qwen3's own settings of sampling
QWEN3 = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "beta": 0.04}
WANDERING = {"name": f"{REPO}/tests/support/worlds.py:Wandering", "turn_tokens": 5}


def make(folder, out, base, peft=True, **settings):
    usual = {
        "sampler": None,
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": base,
        "vllm_server_timeout": 20,
        "vllm_sync_adapter": "adapter",
        "use_cpu": False,  # the sets come from GPUs alone
        "learning_rate": 5.0,
        "max_steps": 3,
    }
    adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"]) if peft else None
    return overlap_run.make(folder, out, peft=adapter, **{**usual, **QWEN3, **settings})


def run(folder, out, returns_kept=True, **settings):
    end = AutoTokenizer.from_pretrained(folder).eos_token_id
    with kept_server(folder, end, returns_kept) as (server, base):
        trainer = make(folder, out, base, **settings)
        trainer.train()
    return trainer, server


def scores_of(trainer, weights, prompt, completion):
    """The scores of all tokens at each position: (T, V); without weights, those of the base."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    now = {name: p.detach().clone() for name, p in model.named_parameters()}
    zero = {name: torch.zeros_like(p) for name, p in now.items() if "lora_B" in name}
    model.load_state_dict(zero if weights is None else weights, strict=False)
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0]
    model.load_state_dict(now, strict=False)
    first = len(prompt) - 1
    return logits[first : first + len(completion)].float() / trainer.temperature


def over(kept, scores, completion):
    """The log-probs of a completion over its kept tokens."""
    logps = scores.masked_fill(~kept, -torch.inf).log_softmax(-1)
    return logps[torch.arange(len(completion)), completion]


def checked_rows(trainer, age):
    """Compare all that the steps trained on with the formulas; return the number of tokens."""
    count = 0
    weights_at = {step: noted["weights"] for step, noted in trainer.steps.items()}
    for step, noted in trainer.steps.items():
        for part in noted["used"]:
            assert part.kept is not None
            for i, kept_set in enumerate(part.kept):
                prompt = part.prompt_ids[i][part.prompt_mask[i].bool()].tolist()
                length = int(part.completion_mask[i].sum())
                completion = part.completion_ids[i, :length].tolist()
                own = part.loss_mask[i, :length].bool()
                kept = kept_set.mask()[:length]
                sampled_at = int(part.policy_step[i, 0])
                assert sampled_at == max(0, step - age) and len(kept_set) >= length
                drawn = scores_of(trainer, weights_at[sampled_at], prompt, completion)
                logps = over(kept, drawn, completion)
                sampled = part.sampling_per_token_logps[i, :length]
                assert torch.allclose(sampled[own], logps[own], **CLOSE)
                reference = over(kept, scores_of(trainer, None, prompt, completion), completion)
                ref = part.ref_per_token_logps[i, :length]
                assert torch.allclose(ref[own], reference[own], **CLOSE)
                count += int(own.sum())
                old = part.old_per_token_logps
                if old is None or old[i].isnan().any():
                    continue
                first_step = step if trainer.args.behaviour_policy == "decoupled" else sampled_at
                before = scores_of(trainer, weights_at[first_step], prompt, completion)
                expected = over(kept, before, completion)
                assert torch.allclose(old[i, :length][own], expected[own], **CLOSE)
                ratio = part.importance_sampling_ratio
                if ratio is not None:
                    wanted = (expected - sampled).exp()[own]
                    assert torch.allclose(ratio[i, :length][own], wanted, rtol=0, atol=1e-5)
    return count


def passes_that_find(trainer, monkeypatch):
    """Note each pass that computes kept tokens itself, apart from the check of edge tokens."""
    found = []
    score = trainer.parts.scorer.score

    def noting(model, table, *args, **kwargs):
        if table.kept is None:
            found.append(len(table))
        return score(model, table, *args, **kwargs)

    monkeypatch.setattr(trainer.parts.scorer, "score", noting)
    return found


@pytest.mark.parametrize("policy", ["decoupled", "sampler"])
def test_overlap_with_the_settings_of_qwen3(tiny_folder, tmp_path, policy):
    cap = {"vllm_importance_sampling_clip_max": 1e9}
    trainer, server = run(tiny_folder, tmp_path, behaviour_policy=policy, **cap)
    assert checked_rows(trainer, age=1) > 60
    asked = server.asked[-1]["sampling_params"]
    assert (asked["top_k"], asked["top_p"], asked["logprobs"]) == (20, 0.95, 0)
    assert metric_values(trainer, "overlap/age") == [0.0, 1.0, 1.0]
    assert max(metric_values(trainer, "sampling/sync_difference")) <= 1e-5
    assert max(metric_values(trainer, "sampling/edge_tokens")) == 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"num_iterations": 2, "max_steps": 4},
        {"vllm_importance_sampling_correction": False},
        {"vllm_importance_sampling_correction": False, "group_filter": "refill"},
    ],
    ids=["several_updates", "without_a_correction", "refill"],
)
def test_in_turn_without_a_pass_that_finds_them(tiny_folder, tmp_path, monkeypatch, settings):
    end = AutoTokenizer.from_pretrained(tiny_folder).eos_token_id
    cap = {"vllm_importance_sampling_clip_max": 1e9, "overlap": "off"}
    with kept_server(tiny_folder, end) as (_, base):
        trainer = make(tiny_folder, tmp_path, base, **cap, **settings)
        found = passes_that_find(trainer, monkeypatch)
        trainer.train()
    assert not found
    rows = 0
    for noted in trainer.steps.values():
        for part in noted["used"]:
            assert part.kept is not None and len(part.kept) == len(part)
            rows += len(part)
    assert rows > 0
    assert max(metric_values(trainer, "sampling/sync_difference")) <= 1e-5


def test_episodes(tiny_folder, tmp_path):
    """Turns come one by one, each with its kept tokens; what the environment says has none."""
    settings = {"environment": WANDERING, "max_completion_length": 40, "overlap": "off"}
    end = AutoTokenizer.from_pretrained(tiny_folder).eos_token_id
    rows = [{"prompt": [{"role": "user", "content": f"Use {a}, 3 to make 4."}]} for a in range(12)]
    with kept_server(tiny_folder, end) as (_, base):
        trainer = make(tiny_folder, tmp_path, base, rows=rows, reward=spread, **settings)
        trainer.train()
    assert checked_rows(trainer, age=0) > 60
    answers = 0
    for noted in trainer.steps.values():
        for part in noted["used"]:
            answers += int((part.completion_mask - part.loss_mask).sum())
    assert answers > 0
    assert max(metric_values(trainer, "sampling/edge_tokens")) == 0.0


def spread(completions, **_):
    return [sum(map(ord, c[-1]["content"])) % 17 / 16 for c in completions]


def test_a_server_that_does_not_return_them_is_refused_under_overlap(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="this sampler does not return them"):
        run(tiny_folder, tmp_path, returns_kept=False)


def test_a_server_that_keeps_others_is_noticed(tiny_folder, tmp_path, monkeypatch):
    """Sets that lack tokens: the log-probs do not fit, although the weights are right."""
    end = AutoTokenizer.from_pretrained(tiny_folder).eos_token_id
    with kept_server(tiny_folder, end) as (server, base):
        whole = server.complete

        def narrow(body):
            choice = whole(body)
            masks = zip(choice["token_ids"], choice["sampling_mask"], strict=True)
            return {**choice, "sampling_mask": [[t, *{*kept} - {t}][:12] for t, kept in masks]}

        server.complete = narrow
        trainer = make(tiny_folder, tmp_path, base)
        with pytest.raises(EngineFailure, match=r"differ by .* on average from the"):
            trainer.train()


def test_tokens_at_the_edge_are_counted(tiny_folder, tmp_path):
    """An engine that keeps more than the trainer would: log-probs fit, and tokens are outside."""
    end = AutoTokenizer.from_pretrained(tiny_folder).eos_token_id
    with kept_server(tiny_folder, end) as (server, base):
        whole = server.complete

        def wide(body):
            asked = {**body["sampling_params"], "top_k": 40, "top_p": 1.0}
            return whole({**body, "sampling_params": asked})

        server.complete = wide
        trainer = make(tiny_folder, tmp_path, base, overlap="off")
        trainer.train()
    shares = metric_values(trainer, "sampling/edge_tokens")
    assert len(shares) == 3 and min(shares) > 0.05 and max(shares) < 0.95
    assert max(metric_values(trainer, "sampling/sync_difference")) <= 1e-5
