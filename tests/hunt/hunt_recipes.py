"""A shipped recipe, changed at random, is refused with its line and key, or takes its first step.

`check` and `train` agree.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import yaml
from hypothesis import strategies as st

from grpo_ext import load_recipe, train
from grpo_ext.cli.main import main
from tests.support.hunting import hunt, in_child, model
from tests.support.recipe_sizes import RECIPES, SIZES

SHIPPED = {f"{path.parent.name}/{path.stem}": path for path in RECIPES}
MARK = "=-=-="


def check_and_train_agree(recipe: str, changes: list[tuple[str, str, str]]) -> None:
    """The recipe in small, with changes.

    Args:
        changes: what is done ("set", "drop", "again" for a second line of the key, "line" for a
            line of any text), to which key, and the value as YAML.
    """
    lines = {
        key: yaml.safe_dump(value, default_flow_style=True).split("\n...")[0].strip()
        for key, value in {
            **yaml.safe_load(SHIPPED[recipe].read_text(encoding="utf-8")),
            **SIZES,
            "max_steps": 1,
            "model_name_or_path": str(model()),
            "output_dir": "out",
        }.items()
    }
    more = []
    for what, key, value in changes:
        if what == "set":
            lines[key] = value
        elif what == "drop":
            lines.pop(key, None)
        else:
            more.append(f"{key}: {value}" if what == "again" else value)
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        text = "\n".join([*(f"{key}: {value}" for key, value in lines.items()), *more]) + "\n"
        Path(folder, "recipe.yaml").write_text(text, encoding="utf-8", errors="surrogateescape")

        def body() -> None:
            os.chdir(folder)
            os.environ["HF_HUB_OFFLINE"] = "1"
            print(f"{MARK} check {main(['check', '--config', 'recipe.yaml'])}")
            print(f"{MARK} train {train.main(['--config', 'recipe.yaml'])}")

        said = in_child(body, seconds=120, gibibytes=8.0)
    checked, trained = (
        int(re.search(rf"{MARK} {what} (\d+)", said).group(1)) for what in ("check", "train")
    )
    end = said[-2500:]
    assert "Traceback (most" not in said and "--debug` shows where" not in said, (
        f"a bare error\n{end}"
    )
    taught = "Nothing was learned" not in said  # one step of an untrained model often has no signal
    assert (checked, trained) in ((0, 0 if taught else 1), (1, 2), (2, 2)), (
        f"check {checked}, train {trained}\n{end}"
    )
    assert trained != 2 or "recipe.yaml" in said, f"refused without a place\n{end}"


# of other machines, folders, processes and networks, or what makes a run long
NOT_HERE = re.compile(
    "vllm|hub|report_to|trackio|deepspeed|fsdp|ds3|ddp|local_rank|parallel|accelerat|"
    "output_dir|model_name|use_cpu|bf16|fp16|tf32"
    "|compile|liger|jit|load_in|bnb|trust|resume|dataset_name|dataset_config|plugins|_file|"
    "attn_impl|workers|max_steps|epochs"
    "|multiprocessing|timeout|revision|continuous|paged|empty_cache|disable_tqdm|model_init|"
    "log_level|chat_template_kw"
)
KNOWN = load_recipe(None, {"model_name_or_path": "m"}).flat.defaults
KEYS = sorted(key for key in KNOWN if not NOT_HERE.search(key))
SOME_NUMBERS = "0 1 2 3 4 7 16 64 -1 0.5 1.0 1e-5 1e-300 1e300 .inf .nan 1000000000"
SOME_WORDS = r"""''; null; ~; true; off; []; {}; [1]; [0.5,0.5]; [a]; {a: 1}; [[1]]; 1_000; 0x10
1:30; 2026-01-01; none; group; batch; token; sequence; grpo; dapo; bnpo; cispo; luspo; vespo
sapo; drgrpo; refill; drop; adaptive; adaptive; packed; useful; population; steps; epoch; no
linear; cosine; k1; k2; step; micro_batch; model; trl; sampling; countdown; gsm8k; poem; prompts
sgd; adamw_torch; accuracy; [countdown, format]; [{name: format, mode: strict}]
[{name: length, target: 5}]; [format, format]; '{'; '{x}'; '{nums} {target}'; '+-*/'; "\0"
"\u0663"; &a [*a]; !!python/object:os.system x; |"""
NUMBERS = SOME_NUMBERS.split()
WORDS = SOME_WORDS.replace("\n", "; ").split("; ")


def plausible(key: str) -> st.SearchStrategy[str]:
    default = KNOWN[key]
    usual = (
        ["true", "false"]
        if isinstance(default, bool)
        else NUMBERS
        if isinstance(default, int | float)
        else WORDS
    )
    return st.one_of(
        *[st.sampled_from(usual)] * 3, st.sampled_from([*NUMBERS, *WORDS]), st.text(max_size=8)
    )


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, str, str]:
    what = draw(st.sampled_from(["set"] * 12 + ["drop", "again", "line", "typo"]))
    key = draw(st.sampled_from(KEYS))
    value = draw(st.text(max_size=30) if what == "line" else plausible(key))
    if what == "typo":
        at = draw(st.integers(0, len(key) - 1))
        return (
            "set",
            key[:at] + draw(st.sampled_from(["", "_", "x", key[at] * 2])) + key[at + 1 :],
            value,
        )
    return what, key, value


def test_recipes():
    hunt(
        check_and_train_agree,
        model,
        recipe=st.sampled_from(sorted(SHIPPED)),
        changes=st.lists(changed(), min_size=1, max_size=3),
    )
