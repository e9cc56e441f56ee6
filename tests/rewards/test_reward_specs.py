"""From a recipe's `reward_funcs` to callables.

Every way to name a reward, and every way to get it wrong.
"""

import sys

import pytest

from grpo_ext.rewards.reward_specs import RESERVED, check_columns, needed_columns, resolve_rewards
from tests.support.registry_state import registry_as_before

PLUGIN = """
from grpo_ext.rewards import Example, register

@register("shouting_{tag}", examples=[Example("A", 1.0), Example("a", 0.0)])
def shouting(completions, volume, *, factor: float = 1.0):
    "1 where all letters are capitals."
    return [factor * text.isupper() for text in completions]

def trl_style(completions, gold, scale=1.0, **kwargs):
    return [scale * (c[0]["content"] == g) for c, g in zip(completions, gold)]

async def judge(completions, **kwargs):
    return [0.5] * len(completions)
"""


@pytest.fixture
def plugin(tmp_path, request):
    """A plugin file and the name of its reward, forgotten afterwards."""
    tag = abs(hash(request.node.name)) % 10**6
    path = tmp_path / "my_rewards.py"
    path.write_text(PLUGIN.format(tag=tag))
    with registry_as_before():
        yield str(path), f"shouting_{tag}"


def test_names_mappings_and_weights():
    rewards, weights = resolve_rewards(
        [
            "countdown",
            {"name": "format", "mode": "strict", "weight": 0.5},
            {"name": "tag_count", "weight": 0},
        ]
    )
    assert [reward.name for reward in rewards] == ["countdown", "format", "tag_count"]
    assert weights == [1.0, 0.5, 0.0]
    assert rewards[1].options["mode"] == "strict"


def test_one_reward_needs_no_list():
    rewards, weights = resolve_rewards("countdown")
    assert (rewards[0].name, weights) == ("countdown", [1.0])
    assert resolve_rewards({"name": "format", "weight": 2})[1] == [2.0]


def test_reward_weights_as_trl_has_them():
    assert resolve_rewards(["countdown", "format"], reward_weights=[1, 0.25])[1] == [1.0, 0.25]


def test_plugin_file_registers_rewards(plugin):
    path, name = plugin
    rewards, _ = resolve_rewards([{"name": name, "factor": 2.0}], plugins=[path, path])
    assert rewards[0](completions=["A", "b"], volume=[1, 1]) == [2.0, 0.0]


def test_functions_by_path_are_called_as_trl_calls_them(plugin):
    path, name = plugin
    rewards, _ = resolve_rewards(
        [{"name": f"{path}:trl_style", "scale": 3.0}, f"{path}:judge", f"{path}:shouting"]
    )
    assert [reward.name for reward in rewards] == ["trl_style", "judge", name]
    row = {"prompts": ["p"], "completions": [[{"content": "x"}]], "gold": ["x"]}
    assert rewards[0](**row) == [3.0]
    assert rewards[0](**row, scale=["a column"]) == [3.0]  # as for registered rewards
    assert needed_columns(rewards[0]) == ("gold",) and needed_columns(rewards[2]) == ("volume",)


def test_functions_by_module(plugin, monkeypatch):
    path, _ = plugin
    monkeypatch.syspath_prepend(path.rpartition("/")[0])
    rewards, _ = resolve_rewards(["my_rewards:trl_style"])
    assert rewards[0].name == "trl_style"
    sys.modules.pop("my_rewards")


def test_reward_models_pass_through(tmp_path):
    rewards, weights = resolve_rewards(["org/reward-model", {"name": str(tmp_path), "weight": 0.1}])
    assert rewards == ["org/reward-model", str(tmp_path)] and weights == [1.0, 0.1]


def test_callables_pass_through():
    def mine(completions, **columns):
        return [0.0] * len(completions)

    assert resolve_rewards([mine, {"name": "format", "weight": 3}])[0][0] is mine


def test_labels_make_one_reward_two():
    rewards, _ = resolve_rewards(
        [
            {"name": "length", "target": 9, "unit": "words"},
            {"name": "length", "target": 99, "label": "not_too_long"},
        ]
    )
    assert [reward.__name__ for reward in rewards] == ["length", "not_too_long"]


@pytest.mark.parametrize(
    ("specs", "weights", "words"),
    [
        (["cuntdown"], None, "No reward is named 'cuntdown'. Did you mean 'countdown'"),
        ([{"name": "format", "mod": "strict"}], None, "unknown option 'mod'. Did you mean 'mode'"),
        ([{"name": "format", "wieght": 1}], None, "unknown option 'wieght'. Did you mean 'weight'"),
        ([{"nmae": "format"}], None, "needs a `name`.*Did you mean 'name'"),
        (["format", "format"], None, "2 rewards are called 'format'.*label"),
        (["a/rm", "b/rm"], None, "2 rewards are called 'rm'"),
        (
            ["format", "tag_count"],
            [1.0],
            "number of reward_weights \\(1\\) does not match the number of rewards \\(2\\)",
        ),
        ([{"name": "format", "weight": 1}], [1.0], "Keep one of the two"),
        ([{"name": "format", "weight": "much"}], None, "weight of reward 'format' is 'much'"),
        ([{"name": "format", "weight": float("nan")}], None, "must be a finite number"),
        (["format"], [float("inf")], "must be a finite number"),
        ([{"name": "format", "weight": True}], None, "must be a finite number"),
        ([], None, "No reward is named"),
        ([3], None, "got 3"),
        (["no_such_package.module:f"], None, "cannot load the reward .*: ModuleNotFoundError"),
        (
            ["grpo_ext.rewards.countdown_reward:cuntdown"],
            None,
            "has no 'cuntdown'. Did you mean 'countdown'",
        ),
        (["math:hypot"], None, "Reward 'math:hypot': no signature found"),
        ([{"name": "org/model", "mode": "x"}], None, "takes no options"),
        ([{"name": "org/model", "label": "x"}], None, "cannot have a label"),
        (
            [{"name": "format", "label": 3}],
            None,
            "label of reward 'format' must be a string; got 3",
        ),
    ],
)
def test_wrong_specs_say_what_to_write(specs, weights, words):
    with pytest.raises(ValueError, match=words):
        resolve_rewards(specs, reward_weights=weights)


def test_wrong_options_of_functions_are_found(tmp_path):
    path = tmp_path / "strict.py"
    path.write_text("def plain(completions, volume, *, factor=1): return []")
    with pytest.raises(ValueError, match=r"unknown option 'factr'\. Did you mean 'factor'"):
        resolve_rewards([{"name": f"{path}:plain", "factr": 1}])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:", "SyntaxError"),
        ("import no_such_module", "No module named"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(0)", "exits with 0 when it is imported"),
    ],
)
def test_broken_plugins_are_named(tmp_path, text, words):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"broken.py cannot be loaded: .*{words}"):
        resolve_rewards(["format"], plugins=[str(path)])
    with pytest.raises(ValueError, match="no file at"):
        resolve_rewards(["format"], plugins=[str(tmp_path / "missing.py")])


def test_missing_columns_are_named_with_their_reward():
    rewards, _ = resolve_rewards(["format", "countdown", "org/model"])
    check_columns(rewards, ["prompt", "nums", "target"])
    check_columns(rewards, None)
    with pytest.raises(
        ValueError, match=r"'countdown' reads the column 'target', .* Did you mean 'targets'"
    ):
        check_columns(rewards, ["prompt", "nums", "targets"])


@pytest.mark.parametrize("column", sorted(set(RESERVED) - {"completion"}))
def test_reserved_columns_are_refused(column):
    with pytest.raises(ValueError, match=f"column '{column}'"):
        check_columns([], ["prompt", column])


def test_a_column_that_trl_drops_is_refused_only_where_a_reward_reads_it():
    def reads_it(completions, completion, **kwargs):
        return []

    def reads_others(completions, prompts, completion_ids, trainer_state, log_extra, log_metric):
        return []

    check_columns([reads_others], ["prompt", "completion"])
    with pytest.raises(ValueError, match=r"set rename_columns: \{reference: completion\}"):
        check_columns([reads_it], ["prompt", "completion"])


def test_a_reward_cannot_read_the_column_prompt():
    def reads_prompt(completions, prompt):
        return []

    with pytest.raises(ValueError, match="Rename the parameter"):
        check_columns([reads_prompt], ["prompt"])


def test_reserved_columns_are_those_that_trl_passes_or_drops():
    """Read from the installed TRL, so that a new one there is noticed."""
    import inspect
    import re

    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    passed = set(re.findall(r'(?<!row_)reward_kwargs\["(\w+)"\] =', source))
    passed |= set(re.findall(r"(\w+)=(?:prompts|completions|completion_ids_list)\b", source))
    dropped = set(re.findall(r'"(\w+)"', re.search(r"if key not in \[(.*?)\]", source)[1])) - {
        "prompt"
    }
    assert passed | dropped == set(RESERVED)
