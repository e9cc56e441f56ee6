"""Whatever a model writes, a registered reward gives a finite score or none, the same each time,
within bounds.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from grpo_ext.rewards import build, list_rewards
from tests.support.hostile_texts import EXPRESSIONS, LATEX, SHAPES, wrapped
from tests.support.hunting import hunt, in_child

# test_judge_reward.py and test_relevance.py have a server and a model for the others.
CATALOGUE = {
    info.name: info for info in list_rewards() if not (info.loads_model or "url" in info.options)
}
LONGEST = 1_000_000  # characters


def scores_are_sound(
    name: str, example: int, texts: list[tuple[int, list[tuple[str, int]]]], ids: list[int]
) -> None:
    """Completions alone, and beside each other.

    Args:
        example: of the reward's examples, whose columns and options are taken. texts: of each what
        is around it (nothing, tags, a box, an answer), and its pieces, each with how often it is
        repeated. ids: token ids, for rewards that read them.
    """
    whole = [
        wrapped("".join(piece * times for piece, times in pieces)[:LONGEST])[around]
        for around, pieces in texts
    ]
    known = CATALOGUE[name].examples[example % len(CATALOGUE[name].examples)]
    reward = build(name, **known.options)
    columns = {
        **known.columns,
        **({"completion_ids": ids} if "completion_ids" in known.columns else {}),
    }

    def scores(*texts: str) -> list[Any]:
        return reward(
            completions=list(texts), **{key: [value] * len(texts) for key, value in columns.items()}
        )

    def body() -> None:
        alone = [scores(text)[0] for text in whole]
        for score in alone:
            assert score is None or (isinstance(score, float) and math.isfinite(score)), (
                f"a score of {score!r}"
            )
        assert scores(*whole, known.completion)[:-1] == alone, "other scores beside others"

    in_child(body, seconds=20, gibibytes=2.0)


FRAGMENTS = r"""<think> </think> <answer> </answer> \boxed{ } \frac{ \sqrt{ \text{
    \begin{pmatrix} \end{pmatrix} \begin{cases} & \left( \right) \infty \pi \circ \% \$ $ $$ \[
    \] \( \) \cup \cap \in \pm \times \cdot \ln \log_ \sin \exp \binom \int_ ^ _ { } = < > \le
    \ne ≤ − × ÷ ½ ٣ Ⅷ 一 七 水作青龙盘石堤 ， 。 Step First, 1. - \\ #### e E i 0 9 ."""
SYMBOLS = r"x y e p i 0 \pi \infty 0.1 10%"
TWO = r"""\frac{%s}{%s}; %s^{%s}; (%s,%s]; %s+%s; %s%s; \sqrt[%s]{%s}; \log_{%s}(%s); %s=%s
\{%s,%s\}; \text{%s} or %s; \det{%s}%s; \binom{%s}{%s}; \begin{pmatrix}%s\\%s\end{pmatrix}
\int_%s^1 %s dx; %s \le x < %s; \exp(%s%s); \sinh(%s)!%s; %s\%% of %s"""
BAITS = [
    *sorted({text for text in (*EXPRESSIONS, *LATEX, *SHAPES) if len(text) <= 60}),
    *FRAGMENTS.split(),
]
ATOMS = st.one_of(st.integers(-99, 10**12).map(str), st.sampled_from(SYMBOLS.split()))
FORMS = TWO.replace("\n", "; ").split("; ")
FORMULAS = st.recursive(
    ATOMS,
    lambda inner: st.builds(lambda form, a, b: form % (a, b), st.sampled_from(FORMS), inner, inner),
    max_leaves=9,
)
PIECE = st.one_of(FORMULAS, st.sampled_from(BAITS), st.text(max_size=20))
TIMES = st.sampled_from([1] * 12 + [2, 3, 50, 1000, 100_000])


def imported() -> None:
    """Have what rewards import when they are first called imported, so that no fork has to."""
    for name, info in CATALOGUE.items():
        for known in info.examples:
            build(name, **known.options)(
                completions=[known.completion],
                **{key: [value] for key, value in known.columns.items()},
            )


def test_rewards():
    hunt(
        scores_are_sound,
        imported,
        name=st.sampled_from(sorted(CATALOGUE)),
        example=st.integers(0, 9),
        texts=st.lists(
            st.tuples(st.integers(0, 3), st.lists(st.tuples(PIECE, TIMES), max_size=6)),
            min_size=1,
            max_size=9,
        ),
        ids=st.lists(st.integers(0, 151_000), max_size=30),
    )
