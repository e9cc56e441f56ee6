"""The registry: what a signature means, what a build checks, and what the author is handed."""

import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from grpo_ext.rewards import Example, build, list_rewards, register
from grpo_ext.rewards.reward import plain_text
from grpo_ext.rewards.signature import misfit
from tests.support.registry_state import registry_as_before


@pytest.fixture
def forget():
    """Take rewards that a test registers out again."""
    with registry_as_before():
        yield


@pytest.fixture
def recorder(forget):
    @register("recorder", examples=[Example("yes", 1.0), Example("no", 0.0)])
    def recorder(
        completions, gold, hint=None, *, scale: float = 2.0, mode: str | None = None, **columns
    ):
        """Hands back what it was given.

        More words.
        """
        recorder.seen = {"completions": completions, "gold": gold, "hint": hint, "columns": columns}
        return [scale] * len(completions)

    return recorder


def test_author_gets_texts_columns_and_options(recorder):
    reward = build("recorder", scale=3)
    messages = [
        [{"role": "assistant", "content": "yes"}],
        "no",
        [{"role": "a", "content": [{"type": "text", "text": "x"}]}],
    ]
    out = reward(
        prompts=["p"] * 3,
        completions=messages,
        completion_ids=[[1]] * 3,
        gold=[1, 2, 3],
        other=["o"] * 3,
    )
    assert out == [3, 3, 3]
    assert recorder.seen["completions"] == ["yes", "no", "x"]
    assert recorder.seen["gold"] == [1, 2, 3] and recorder.seen["hint"] is None
    assert recorder.seen["columns"]["other"] == ["o"] * 3
    assert (reward.name, reward.__name__, reward.columns) == ("recorder", "recorder", ("gold",))
    assert reward.options == {"scale": 3, "mode": None}


def test_a_parameter_with_a_default_is_an_option_where_it_is_given(forget):
    @register("at_most")
    def at_most(completions, most: int = 1):
        "1 where there are no more equal signs than `most`."
        limits = most if isinstance(most, list) else [most] * len(completions)
        return [
            float(text.count("=") <= limit) for text, limit in zip(completions, limits, strict=True)
        ]

    texts = ["=", "==", "==="]
    assert build("at_most")(completions=texts) == [1, 0, 0]
    assert build("at_most", most=2)(completions=texts) == [1, 1, 0]
    assert build("at_most", most=2)(completions=texts, most=[3, 3, 3]) == [1, 1, 0]
    assert build("at_most")(completions=texts, most=[0, 0, 3]) == [0, 0, 1]
    with pytest.raises(ValueError, match="most = '2': it must be a valid integer"):
        build("at_most", most="2")
    with pytest.raises(ValueError, match=r"unknown option 'mots'\. Did you mean 'most'"):
        build("at_most", mots=2)


def test_catalogue_line(recorder):
    info = {info.name: info for info in list_rewards()}["recorder"]
    assert info.summary == "Hands back what it was given."
    assert (info.columns, info.options, info.needs_cpu) == (
        ("gold",),
        {"scale": 2.0, "mode": None},
        False,
    )


def test_extras_come_only_when_named(forget):
    @register("ids")
    def ids(completions, completion_ids):
        "Token counts."
        return [float(len(row)) for row in completion_ids]

    everything = {
        "prompts": ["p"],
        "trainer_state": object(),
        "log_extra": print,
        "log_metric": print,
        "x": [1],
    }
    assert build("ids")(completions=["a"], completion_ids=[[1, 2, 3]], **everything) == [3.0]
    assert build("ids").columns == ()
    with pytest.raises(TypeError, match="completion_ids"):
        build("ids")(completions=["a"])


def test_missing_column_is_named():
    with pytest.raises(
        ValueError, match=r"'countdown' reads the column 'target'.*columns are: nums"
    ):
        build("countdown")(completions=["a"], nums=[[1]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build("cuntdown"), "Did you mean 'countdown'"),
        (lambda: build("countdown", tolerence=1), "Did you mean 'tolerance'"),
        (lambda: build("format", mode="lose"), "must be 'strict' or 'loose'. Did you mean 'loose'"),
        (lambda: build("countdown", tolerance="tight"), "must be a valid number"),
        (lambda: build("reasoning_steps", target=2.5), "must be a valid integer"),
        (lambda: build("reasoning_steps", target=0), "must be greater than 0"),
        (lambda: build("reasoning_steps", target=True), "must be a valid integer"),
    ],
)
def test_wrong_builds_say_what_to_write(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("annotation", "value", "wrong"),
    [
        (tuple[int, ...], [1, 2], None),
        (list[str], ["a", 1], "a valid string"),
        (Path, "words.txt", None),
        (float, 1, None),
        (float, float("nan"), "finite"),
        (float | None, None, None),
        (object, object(), None),
        (Fraction, Fraction(1, 3), None),
        (int, Fraction(1, 3), "a valid integer"),
        (str, object(), "a valid string"),
        ("Unknown", 3, None),
    ],
)
def test_a_type_is_checked_as_in_json(annotation, value, wrong):
    found = misfit(value, annotation)
    assert found is None if wrong is None else wrong in found


@pytest.mark.parametrize(
    ("reward", "options"),
    [
        ("repetition_penalty", {"ngram_size": 0}),
        ("cosine_scaled", {"max_len": 0}),
        ("judge", {"url": "http://localhost", "model": "m", "rubric": "r", "concurrency": 0}),
    ],
)
def test_sizes_of_zero_are_refused(reward, options):
    with pytest.raises(ValueError, match="= 0: it must be greater than 0"):
        build(reward, **options)


def test_options_without_default_must_be_given(forget):
    @register("needs_limit")
    def needs_limit(completions, *, limit: int):
        return [0.0] * len(completions)

    with pytest.raises(ValueError, match="needs a value for its option limit"):
        build("needs_limit")
    assert build("needs_limit", limit=3)(completions=["a"]) == [0.0]


def test_functions_that_cannot_be_rewards_are_refused(forget):
    with pytest.raises(TypeError, match="completions"):
        register("a")(lambda texts: [])
    with pytest.raises(TypeError, match="positional"):
        register("b")(lambda completions, *columns: [])
    with pytest.raises(ValueError, match="letters"):
        register("pkg/model")

    async def later(completions):
        return []

    with pytest.raises(TypeError, match="async"):
        register("c")(later)


def test_names_are_unique_but_a_module_may_register_again(forget):
    with pytest.raises(ValueError, match=r"taken by grpo_ext\.rewards\.countdown"):
        register("countdown")(lambda completions: [])
    with pytest.raises(ValueError, match=r"taken by grpo_ext\.rewards\.poem"):
        register("poem_yun")(lambda completions: [])
    register("mine")(lambda completions: [0.0])
    register("mine")(lambda completions: [1.0])
    assert build("mine")(completions=["a"]) == [1.0]


def test_pickle_keeps_name_and_options():
    reward = pickle.loads(pickle.dumps(build("format", mode="loose")))
    assert (reward.name, reward.options["mode"]) == ("format", "loose")
    assert reward(completions=["<think></think><answer></answer>"]) == [1.0]


@pytest.mark.parametrize("completion", [None, 3, b"bytes", {"content": "x"}])
def test_what_is_no_completion_is_a_type_error(completion):
    with pytest.raises(TypeError):
        plain_text(completion)


def test_plain_text_of_odd_messages():
    assert plain_text([]) == ""
    assert plain_text([{"role": "assistant", "tool_calls": []}]) == ""
    assert (
        plain_text([{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]) == ""
    )


def test_import_is_light():
    code = (
        "import sys, grpo_ext.rewards; "
        "heavy = {'torch', 'transformers', 'trl', 'sympy', 'math_verify', 'pypinyin', "
        "'numpy'} & set(sys.modules); "
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
