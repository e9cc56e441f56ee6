"""What holds for every reward in the catalogue, and what each of the smaller ones means."""

import math
import unicodedata

import pytest

from grpo_ext.rewards import build, list_rewards
from grpo_ext.rewards.format_rewards import share_in_scripts
from grpo_ext.rewards.signature import REQUIRED

CATALOGUE = {info.name: info for info in list_rewards()}
TRL_ONES = (
    "think_format",
    "soft_overlong_punishment",
    "repetition_penalty",
    "cosine_scaled",
    "reasoning_accuracy",
)
WANTED = (
    *(
        "accuracy",
        "countdown",
        "format",
        "instructions",
        "language_consistency",
        "length",
        "poem_format",
        "poem_yun",
    ),
    *(
        "reasoning_steps",
        "right_steps",
        "tag_count",
        "exact",
        "choice",
        "number",
        "regex",
        "json_schema",
        *TRL_ONES,
    ),
)


def test_everything_promised_is_there():
    assert set(WANTED) <= set(CATALOGUE)


@pytest.mark.parametrize("name", WANTED)
def test_examples_get_their_scores(name):
    examples = CATALOGUE[name].examples
    for example in examples:
        columns = {key: [value] for key, value in example.columns.items()}
        assert build(name, **example.options)(completions=[example.completion], **columns) == [
            pytest.approx(example.score) if example.score is not None else None
        ], example
    scores = {example.score for example in examples} - {None}
    assert len(scores) > 1, "an example that earns more and one that earns less"


@pytest.mark.parametrize("name", WANTED)
def test_examples_are_judged_alike_together(name):
    """A batch is scored row by row: nothing leaks from one completion to another."""
    by_options = {}
    for example in CATALOGUE[name].examples:
        by_options.setdefault(str(example.options), []).append(example)
    for examples in by_options.values():
        keys = set.intersection(*(set(example.columns) for example in examples))
        if any(set(example.columns) != keys for example in examples):
            continue
        columns = {key: [example.columns[key] for example in examples] for key in keys}
        scores = build(name, **examples[0].options)(
            completions=[example.completion for example in examples], **columns
        )
        assert scores == [pytest.approx(e.score) if e.score is not None else None for e in examples]


@pytest.mark.parametrize("name", WANTED)
def test_every_reward_documents_itself(name):
    info = CATALOGUE[name]
    assert 20 < len(info.summary) < 200
    for option in info.options:
        assert option in info.doc, f"{option} is not in the docstring"


def test_cpu_heavy_ones_say_so():
    heavy = {name for name, info in CATALOGUE.items() if info.needs_cpu}
    expected = {"accuracy", "cosine_scaled", "reasoning_accuracy", "json_schema", "code"}
    assert heavy - {"reasoning_gym"} == expected  # in the catalogue where the package is there


def test_trl_rewards_take_trls_arguments():
    import inspect

    from trl import rewards

    factories = {
        "soft_overlong_punishment": rewards.get_soft_overlong_punishment,
        "repetition_penalty": rewards.get_repetition_penalty_reward,
        "cosine_scaled": rewards.get_cosine_scaled_reward,
    }
    for name, factory in factories.items():
        theirs = {p.name: p.default for p in inspect.signature(factory).parameters.values()}
        assert CATALOGUE[name].options == {
            k: REQUIRED if v is inspect.Parameter.empty else v for k, v in theirs.items()
        }


def test_trl_rewards_score_as_trl_does():
    from trl.rewards import get_cosine_scaled_reward, think_format_reward

    texts = ["<think>a</think>b", "a", r"\boxed{4}", r"\boxed{5}"]
    conversational = [[{"role": "assistant", "content": text}] for text in texts]
    assert build("think_format")(completions=texts) == think_format_reward(conversational)
    ids = [[1] * n for n in (3, 50, 80, 200)]
    gold = ["$4$"] * 4
    ours = build("cosine_scaled", max_len=100, min_value_wrong=-2.0)(
        completions=texts, completion_ids=ids, solution=gold
    )
    assert ours == get_cosine_scaled_reward(100, min_value_wrong=-2.0)(conversational, gold, ids)


@pytest.mark.parametrize(
    ("prefer", "lengths"),
    [
        ("shorter", [0, 1, 1, 0.5, 0.25]),
        ("longer", [0, 0.5, 1, 1, 1]),
        ("near", [0, 0.5, 1, 0.5, 0.25]),
    ],
)
def test_length_ratios(prefer, lengths):
    words = [0, 5, 10, 20, 40]
    for unit, texts in (
        ("words", ["w " * n for n in words]),
        ("characters", ["字" * n for n in words]),
    ):
        assert build("length", target=10, unit=unit, prefer=prefer)(completions=texts) == lengths
    ids = [[1] * n for n in words]
    assert (
        build("length", target=10, prefer=prefer)(completions=[""] * 5, completion_ids=ids)
        == lengths
    )


def test_length_says_what_it_lacks():
    with pytest.raises(ValueError, match="no token ids"):
        build("length", target=3)(completions=["a"])
    with pytest.raises(ValueError, match="greater than 0"):
        build("length", target=0, unit="words")
    with pytest.raises(ValueError, match="Did you mean 'words'"):
        build("length", target=3, unit="word")


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("The quick fox", "en", 1.0),
        ("Der flinke Fuchs über", "de", 1.0),
        ("The 快 fox 狐", "en", 0.5),
        ("敏捷的狐狸 fox", "zh", 5 / 6),
        ("设 x 为 3", "zh", 1.0),  # a single Latin letter is a variable
        ("设 x 为 3", "en", 1 / 3),
        ("速い狐がカタカナを", "ja", 1.0),
        ("빠른 여우 fox", "ko", 2 / 3),
        ("быстрая лиса", "ru", 1.0),
        ("γρήγορη αλεπού", "el", 1.0),
        ("ثعلب سريع", "ar", 1.0),
        ("שועל מהיר", "he", 1.0),
        ("तेज़ लोमड़ी", "hi", 1.0),
        ("<think>\n42 = 6 \\times 7\n</think>", "zh", 1.0),  # no words at all
        ("", "en", 1.0),
        ("ᚠᛇᚻ", "en", 0.0),
    ],
)
def test_language_by_script(text, language, expected):
    assert build("language_consistency", language=language)(completions=[text]) == [
        pytest.approx(expected)
    ]


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("<think>the 快</think><answer>fox</answer>", (0.5, 1.0, 2 / 3)),
        ("<think>狐狸</think>the fox", (0.0, 1.0, 0.5)),
        ("why</think>狐狸", (1.0, 0.0, 1 / 3)),
        ("<think>3 + 4 = 7</think>", (1.0, 0.0, 1.0)),  # no words, but there are thoughts
        ("the fox", (0.0, 1.0, 1.0)),
        ("", (0.0, 0.0, 1.0)),
    ],
)
def test_language_of_a_part(text, shares):
    for part, expected in zip(("thoughts", "answer", "all"), shares, strict=True):
        reward = build("language_consistency", part=part)
        assert reward(completions=[text]) == [pytest.approx(expected)], part


def test_language_options_are_checked():
    with pytest.raises(ValueError, match="it must be"):
        build("language_consistency", language="english")


@pytest.mark.parametrize(
    ("script", "prefix"),
    [
        ("latin", "LATIN"),
        ("cyrillic", "CYRILLIC"),
        ("greek", "GREEK"),
        ("arabic", "ARABIC"),
        ("hebrew", "HEBREW"),
        ("devanagari", "DEVANAGARI"),
        ("thai", "THAI"),
        ("hangul", "HANGUL"),
    ],
)
def test_letters_are_in_the_script_that_unicode_says(script, prefix):
    """Over the basic plane's letters, by their Unicode names."""
    wrong = []
    for code in range(0x41, 0x2000):
        character = chr(code)
        if unicodedata.category(character) not in ("Lu", "Ll", "Lo"):
            continue
        if unicodedata.name(character, "").startswith(prefix) != (
            share_in_scripts(character * 2, (script,)) == 1.0
        ):
            wrong.append(character)
    assert len(wrong) <= 20, "".join(wrong)


@pytest.mark.parametrize("name", WANTED)
def test_scores_are_finite_floats(name):
    info = CATALOGUE[name]
    example = info.examples[0]
    columns = {key: [value] * 3 for key, value in example.columns.items()}
    scores = build(name, **example.options)(completions=["", "x", "<answer>好</answer>"], **columns)
    assert all(s is None or (isinstance(s, float) and math.isfinite(s)) for s in scores)
