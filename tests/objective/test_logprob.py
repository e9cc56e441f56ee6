"""Log-probs over the kept set against dense tensors, transformers' own warpers and finite
differences.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from grpo_ext.objective import logit_blocks
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens

GRID = [
    SamplingParams(t, k, p, m)
    for t, k, p, m in [
        (1.0, 0, 1.0, 0.0),
        (0.7, 5, 1.0, 0.0),
        (1.5, 0, 0.5, 0.0),
        (0.3, 0, 0.9, 0.1),
        (1.0, 50, 0.9, 0.1),
        (1.0, 1, 0.5, 0.0),
        (2.0, 0, 1.0, 0.3),
    ]
]
GRID.append(SamplingParams(0.7, 5, 0.9, suppressed=(1, 39, 40)))


@pytest.fixture(scope="module")
def model():
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def warped(model, logits, params):
    """What transformers' own sampling would draw from."""
    config = GenerationConfig(
        do_sample=True,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        suppress_tokens=list(params.suppressed) or None,
    )
    scores = logits.clone()
    for processor in model._get_logits_processor(config):
        scores = processor(None, scores)
    return scores


@pytest.mark.parametrize("params", GRID)
@pytest.mark.parametrize("ties", [False, True])
def test_keeps_what_transformers_keeps(model, params, ties):
    logits = 3 * torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    logits = logits.round() if ties else logits
    expected = warped(model, logits, params)
    assert torch.equal(kept_tokens(logits / params.temperature, params), expected > -torch.inf)


def vllm_keeps(row: list[float], k: int, p: float, m: float) -> set[int]:
    """vLLM's order, token by token: min_p, then the k best, then the smallest set of mass p."""
    total = sum(torch.tensor(row, dtype=torch.float64).exp().tolist())
    probs = {
        i: float(torch.tensor(x, dtype=torch.float64).exp()) / total for i, x in enumerate(row)
    }
    kept = {i: q for i, q in probs.items() if q >= m * max(probs.values())}
    if k:
        worst = sorted(kept.values(), reverse=True)[:k][-1]
        kept = {i: q for i, q in kept.items() if q >= worst}
    mass = 0.0
    out = set()
    for i, q in sorted(kept.items(), key=lambda item: -item[1]):
        if mass >= p * sum(kept.values()):
            break
        out.add(i)
        mass += q
    return out


@pytest.mark.parametrize("k, p, m", [(0, 0.8, 0.05), (5, 0.9, 0.2), (3, 1.0, 0.0), (10, 0.5, 0.01)])
def test_vllm_order(k, p, m):
    logits = 2 * torch.randn(50, 20, generator=torch.Generator().manual_seed(2))
    kept = kept_tokens(logits, SamplingParams(1.0, k, p, m, order="vllm"))
    for row, mask in zip(logits.tolist(), kept, strict=True):
        assert vllm_keeps(row, k, p, m) == set(mask.nonzero().squeeze(-1).tolist())


def test_the_two_orders_differ():
    logits = torch.tensor([[0.5, 0.3, 0.12, 0.05, 0.03]]).log()
    hf, vllm = (
        kept_tokens(logits, SamplingParams(1.0, 0, 0.86, 0.2, order=order))
        for order in ("hf", "vllm")
    )
    assert hf.sum() == 3  # 0.5 + 0.3 is not yet 0.86
    assert vllm.sum() == 2  # without the two that min_p drops, it is


def dense(hidden, weight, bias, targets, params, kept, scale=1.0, softcap=None):
    """The definition, with all logits at once."""
    logits = hidden @ weight.T + bias
    logits = logits * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = (logits / params.temperature).masked_fill(~kept, -torch.inf).log_softmax(-1)
    entropy = torch.stack(
        [-sum(x.exp() * x for x in row[k]) for row, k in zip(log_p, kept, strict=True)]
    )
    return log_p[torch.arange(len(targets)), targets], entropy


@pytest.mark.parametrize("params", GRID)
@pytest.mark.parametrize("scale, softcap", [(1.0, None), (0.5, 4.0)])
def test_values_and_gradients_equal_the_definition(params, scale, softcap, monkeypatch):
    monkeypatch.setattr(logit_blocks, "_MIN_TILE", 40 * 3)  # three positions a tile
    monkeypatch.setattr(logit_blocks, "_LOGITS_PER_POSITION", 0)
    g = torch.Generator().manual_seed(3)
    tensors = [
        torch.randn(*shape, generator=g, requires_grad=True) for shape in ((17, 8), (40, 8), (40,))
    ]
    logits = (tensors[0] @ tensors[1].T + tensors[2]).detach() * scale
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    kept = kept_tokens(logits / params.temperature, params)
    targets = torch.stack([mask.nonzero()[0, 0] for mask in kept])
    targets[3] = (
        int((~kept[3]).nonzero()[0, 0]) if not kept[3].all() else targets[3]
    )  # left the set by rounding, say
    kept[3, targets[3]] = True
    up = [torch.randn(17, generator=g), torch.randn(17, generator=g)]

    expected = dense(*tensors, targets, params, kept, scale, softcap)
    wanted = torch.autograd.grad(
        sum((a * b).sum() for a, b in zip(expected, up, strict=True)), tensors
    )
    logps, entropy, found = sampling_log_probs(
        *tensors, targets, params, logit_transform=LogitTransform(scale, softcap)
    )
    got = torch.autograd.grad((logps * up[0]).sum() + (entropy * up[1]).sum(), tensors)

    assert torch.equal(found.mask(), kept) if params.truncated else found is None and kept.all()
    torch.testing.assert_close(logps, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, expected[1], rtol=1e-5, atol=1e-5)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_stored_set_is_used_although_the_policy_moved_on():
    g = torch.Generator().manual_seed(4)
    hidden = torch.randn(9, 8, generator=g)
    weight = torch.randn(40, 8, generator=g)
    params = SamplingParams(0.8, 4, 0.9)
    targets = (hidden @ weight.T).argmax(-1)
    _, _, kept = sampling_log_probs(hidden, weight, None, targets, params)
    moved = torch.randn(40, 8, generator=g)
    logps, _, again = sampling_log_probs(hidden, moved, None, targets, params, kept)
    expected, _ = dense(hidden, moved, torch.zeros(40), targets, params, kept.mask())
    assert again is kept
    torch.testing.assert_close(logps, expected)
    assert logps.isfinite().all()


def test_nothing_to_score():
    hidden = torch.zeros(0, 8, requires_grad=True)
    weight = torch.randn(40, 8, requires_grad=True)
    logps, _, kept = sampling_log_probs(
        hidden, weight, None, torch.zeros(0, dtype=torch.long), SamplingParams(1.0, 3)
    )
    logps.sum().backward()
    assert len(kept) == 0 and weight.grad.abs().sum() == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(0, 12), st.integers(0, 2**31), st.floats(0, 1))
def test_a_stored_mask_comes_back(vocab, num, seed, share):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(num, vocab, generator=g) < share * torch.rand(num, 1, generator=g)
    kept = KeptSet.from_mask(mask)
    assert torch.equal(kept.mask(), mask)
    from_ids = KeptSet.from_ids([row.nonzero().flatten().tolist() for row in mask], vocab)
    for name in ("counts", "ids", "bits"):
        assert torch.equal(getattr(from_ids, name), getattr(kept, name))
    order = torch.randint(num, (5,), generator=g) if num else torch.zeros(0, dtype=torch.long)
    assert torch.equal(kept.select(order).mask(), mask[order])
    assert torch.equal(
        KeptSet.cat([kept, kept.select(order)]).mask(), torch.cat([mask, mask[order]])
    )


def test_a_stored_set_is_small():
    few = torch.zeros(100, 151_936, dtype=torch.bool)
    few[:, :20] = True
    for mask, limit in ((few, 100), (~few, 19_100)):
        kept = KeptSet.from_mask(mask)
        assert sum(part.nbytes for part in (kept.counts, kept.ids, kept.bits)) < 100 * limit


def test_memory_that_another_call_has_used_gives_no_wrong_gradient() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(50, 16, requires_grad=True)
    weight = torch.randn(300, 16)
    targets = torch.randint(300, (50,))
    logps = sampling_log_probs(hidden, weight, None, targets, SamplingParams())[0].sum()
    first, again = (torch.autograd.grad(logps, hidden, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, again)
    other = sampling_log_probs(hidden[:20], weight, None, targets[:20], SamplingParams())[0].sum()
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(logps, hidden)
    torch.testing.assert_close(torch.autograd.grad(other, hidden)[0][:20], first[:20])


def test_calls_without_gradient_leave_what_a_backward_pass_needs(monkeypatch) -> None:
    monkeypatch.setattr(logit_blocks, "_spare", [])
    torch.manual_seed(0)
    hidden = torch.randn(50, 16, requires_grad=True)
    weight = torch.randn(300, 16)
    targets = torch.randint(300, (50,))

    def gradient(between) -> torch.Tensor:
        logps = sampling_log_probs(hidden, weight, None, targets, SamplingParams())[0].sum()
        with between():
            sampling_log_probs(hidden.detach(), weight, None, targets, SamplingParams())
        return torch.autograd.grad(logps, hidden)[0]

    found = [
        gradient(mode)
        for mode in (torch.no_grad, torch.inference_mode, torch.no_grad, torch.inference_mode)
    ]
    logps = torch.log_softmax(hidden @ weight.T, -1).gather(-1, targets[:, None]).sum()
    expected = torch.autograd.grad(logps, hidden)[0]
    for each in found:
        torch.testing.assert_close(each, expected)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_the_gradient_of_a_likely_token_is_exact_where_logits_are_large(temperature, with_entropy):
    """All logits are exact in float32; that of the target is 256 and a gap above the others."""
    gaps = torch.arange(64) / 16 + 5
    hidden = torch.stack([torch.full((64,), 256.0), gaps], 1)  # (N, 2)
    weight = torch.tensor([[1.0, 0.0]] * 39 + [[1.0, 1.0]])  # (V, 2)
    targets = torch.full((64,), 39)
    x = hidden.clone().requires_grad_()
    logps, entropies, _ = sampling_log_probs(x, weight, None, targets, SamplingParams(temperature))
    total = logps.sum()
    if with_entropy:  # the pass that computes the logits again
        total = total + 0.0 * entropies.sum()
    total.backward()
    exact = hidden.double().requires_grad_()
    scores = exact @ weight.double().t() / temperature
    scores.log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    error = (x.grad.double() - exact.grad)[:, 1].abs() / temperature
    assert error.max() < 2e-6  # 1.5e-5 and 1e-4 with one normalizer in float32
