"""Tokens are drawn with their probabilities, and never one that was removed."""

from __future__ import annotations

import pytest
import torch

from grpo_ext.decoding.draw import draw_tokens


def test_greedy_takes_the_first_of_the_largest():
    scores = torch.tensor([[0.0, 2.0, 2.0], [5.0, -torch.inf, 1.0]])
    assert draw_tokens(scores, do_sample=False).tolist() == [1, 0]


@pytest.mark.parametrize("rows", [200_000, 4_000])  # by blocks, and from all tokens
def test_draws_with_the_probabilities_of_the_softmax(rows):
    probs = torch.tensor([0.4, 0.3, 0.2, 0.05, 0.03, 0.015, 0.004, 0.001], dtype=torch.float64)
    torch.manual_seed(0)
    scores = probs.log().float().repeat(rows, 1)
    draws = [draw_tokens(scores, do_sample=True) for _ in range(200_000 // rows)]
    counts = torch.bincount(torch.cat(draws), minlength=8).double()
    expected = probs * 200_000
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert abs(statistic - 7) < 5 * 14**0.5  # a chi-squared has mean k and variance 2k


def test_rows_are_independent():
    torch.manual_seed(0)
    drawn = draw_tokens(torch.zeros(100_000, 2), do_sample=True).view(-1, 2)
    both_one = float((drawn.sum(-1) == 2).double().mean())
    assert abs(both_one - 0.25) < 5 * (0.25 * 0.75 / 50_000) ** 0.5


@pytest.mark.parametrize("left", [[0], [4], [2, 3], [1, 4]])
def test_what_was_taken_away_is_never_drawn(left):
    scores = torch.full((50_000, 5), -torch.inf)
    scores[:, left] = torch.randn(len(left), generator=torch.Generator().manual_seed(0))
    assert set(draw_tokens(scores, do_sample=True).tolist()) == set(left)


@pytest.mark.parametrize("rows", [1, 10_000])
def test_not_even_at_the_ends_of_the_unit_interval(monkeypatch, rows):
    scores = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]]).repeat(rows, 1)
    for uniform, token in ((0.0, 1), (1.0 - 2**-53, 2), (1.0, 2)):
        monkeypatch.setattr(
            torch, "rand", lambda shape, u=uniform, **_: torch.full(shape, u, dtype=torch.float64)
        )
        assert set(draw_tokens(scores, do_sample=True).tolist()) == {token}


def test_tokens_of_a_large_vocabulary_keep_their_small_probabilities():
    """A float32 distribution function would round a probability of 1e-8 beside 1 to 0 or 6e-8."""
    scores = torch.zeros(1, 150_000)
    scores[0, 0] = 30.0
    probs = scores.double().softmax(-1)
    point = float(probs[0, :100_000].sum())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            torch, "rand", lambda shape, **_: torch.full(shape, point, dtype=torch.float64)
        )
        drawn = int(draw_tokens(scores, do_sample=True))
    assert abs(drawn - 100_000) < 1_000


@pytest.mark.parametrize(  # blocks of 256, of 8, of one token, and all tokens
    ("rows", "vocab"), [(400, 49_152), (400, 1_000), (400, 333), (32, 1_000)]
)
def test_the_drawn_token_is_that_of_the_whole_distribution_function(rows, vocab):
    scores = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3
    scores[:, 100:300] = -torch.inf  # a block and parts of two
    torch.manual_seed(1)
    drawn = draw_tokens(scores, do_sample=True)
    torch.manual_seed(1)
    mass = scores.double().softmax(-1).cumsum(-1)  # (b, V)
    points = torch.rand(rows, 1, dtype=torch.float64)
    expected = torch.searchsorted(mass, points, right=True).squeeze(1)
    assert not ((drawn >= 100) & (drawn < 300)).any()
    # a point within 1e-6 of a border may fall on its other side
    drawn_end = mass.gather(1, drawn[:, None])
    drawn_begin = drawn_end - scores.double().softmax(-1).gather(1, drawn[:, None])
    assert (drawn_begin - 1e-6 <= points).all()
    assert (points <= drawn_end + 1e-6).all()
    assert float((drawn == expected).double().mean()) > 0.98


@pytest.mark.parametrize("rows", [3, 10_000])
@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_scores_without_a_distribution_are_refused(bad, rows):
    scores = torch.zeros(rows, 4)
    scores[1] = bad
    with pytest.raises(ValueError, match="Cannot sample a token"):
        draw_tokens(scores, do_sample=True)
