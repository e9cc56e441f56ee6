"""The script of all GPU figures.

What a cut-off call leaves, limits, failures, and its arithmetic.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import benchmarks.gpu.__main__ as script
from benchmarks.gpu import carry, setup
from benchmarks.gpu.advice import settings_in
from benchmarks.gpu.parts import PARTS, Mode, Part
from benchmarks.gpu.seeds import padded_vocabulary
from benchmarks.gpu.shapes import SHAPES, make_model, needed
from benchmarks.gpu.sheet import TABLE, Sheet
from benchmarks.gpu.training import work_of
from grpo_ext.tiny.tokenizer import build_tokenizer
from tests.support.forked import LIMIT
from tests.support.step_work import make_work

PREDICT = """
import sys, time
from pathlib import Path
from benchmarks.gpu.sheet import Sheet
sheet = Sheet(Path({folder!r}), {name!r})
if not sheet.has("first"):
    sheet.predict("first", 2.0, "s", "1 + 1", ("<=", 1.0))
    sheet.measured("first", 3.0)
{then}
"""


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """Parts whose processes run these lines after they have measured one figure that misses its
    bound.
    """

    def given(**bodies):
        parts = {
            name: Part(name, "", limit=limit, least=1.0) for name, (limit, _) in bodies.items()
        }
        monkeypatch.setattr(script, "PARTS", parts)

        def command(name, mode, folder, vllm):
            return [
                sys.executable,
                "-c",
                PREDICT.format(folder=str(folder), name=name, then=bodies[name][1]),
            ]

        monkeypatch.setattr(script, "command_of", command)
        return tmp_path / "out"

    return given


def table(folder):
    return [line.split(" | ") for line in (folder / TABLE).read_text().splitlines()[2:]]


def test_a_failing_part_and_one_that_hangs_do_not_stop_the_next(scripts):
    folder = scripts(
        bad=(300, "sys.exit('no memory')"), slow=(20, "time.sleep(6000)"), good=(300, "")
    )
    script.run_parts(["bad", "slow", "good"], Mode(), folder, 6000, False)
    ends = {name: Sheet(folder, name).data for name in ("bad", "slow", "good")}
    assert [found["status"] for found in ends.values()] == ["failed", "over its limit", "done"]
    assert ends["bad"]["last"].endswith("no memory")
    assert all(
        found["rows"]["first"] | {"kept": False} == found["rows"]["first"]
        for found in ends.values()
    )
    assert [(row[0], row[1]) for row in table(folder)][::2] == [
        (f"| {name}", "first") for name in ends
    ]
    assert Sheet(folder, "bad").missed() == ["bad: first", "bad failed"] and Sheet(
        folder, "good"
    ).missed() == ["good: first"]


def test_the_same_call_goes_on_with_what_has_no_result(scripts, monkeypatch):
    """By a clock of its own.

    A part takes a second, and one that ends with 77 all the time that it is given.
    """
    folder = scripts(
        first=(60, ""), second=(60, "sys.exit(0 if sheet.has('other') else 77)"), third=(60, "")
    )
    now = [0.0]
    run_limited = script.run_limited

    def by_that_clock(command, log, seconds, environment):
        code = run_limited(command, log, LIMIT, environment)
        now[0] += seconds if code == 77 else 1.0
        return None if code == 77 else code

    monkeypatch.setattr(script, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(script, "run_limited", by_that_clock)
    script.run_parts(["first", "second", "third"], Mode(), folder, 9, False)
    found = [Sheet(folder, name).data["status"] for name in ("first", "second", "third")]
    assert found == ["done", None, "left out"]
    assert Sheet(folder, "second").has("first")  # what it measured before it was cut off
    before = (folder / "first.json").read_text()
    Sheet(folder, "second").fact("other", 1.0)
    script.run_parts(["first", "second", "third"], Mode(), folder, 600, False)
    assert [Sheet(folder, name).data["status"] for name in ("first", "second", "third")] == [
        "done",
        "done",
        "done",
    ]
    assert (folder / "first.json").read_text() == before


def test_a_prediction_is_on_disk_before_the_figure(tmp_path):
    sheet = Sheet(tmp_path, "one")
    sheet.predict("seconds", 1.5, "s", "3 / 2")
    assert json.loads(sheet.path.read_text())["rows"]["seconds"][
        "predicted"
    ] == 1.5 and not sheet.has("seconds")
    sheet.measured("seconds", 1.25)
    assert table(tmp_path) == [["| one", "seconds", "1.5", "1.25", "s", "", "3 / 2 |"]]
    assert Sheet(tmp_path, "one").has("seconds") and not sheet.missed()


@pytest.mark.parametrize("name", PARTS)
def test_every_part_can_be_loaded(name):
    assert callable(PARTS[name].load()) and PARTS[name].least < PARTS[name].limit
    assert list(PARTS)[:3] == ["setup", "demo", "tests"]


@pytest.mark.parametrize("lora", [False, True])
def test_operations_are_those_of_the_model(lora):
    """By counting the multiplications of its layers, with the head at completions only."""
    case = replace(work_of("tiny", Mode(dry=True), False, lora), dead=0.0)
    model = make_model("tiny", "cpu")
    body = sum(
        p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name
    )
    head = model.lm_head.weight.numel()
    adapters = sum(
        8 * sum(p.shape)
        for name, p in model.named_parameters()
        if p.dim() == 2 and "embed" not in name
    )
    work = make_work(case)
    written = sum(map(len, work.completions))
    read = sum(map(len, work.prompts))
    plain = (4 if lora else 6) * (body * (read + written) + head * written) + (
        6 * adapters * (read + written) if lora else 0
    )
    hidden, layers = SHAPES["tiny"][0][:2]
    pairs = sum(n * n / 2 for n in map(len, work.prompts))
    pairs += sum(
        len(work.prompts[i // 8]) * len(x) + len(x) ** 2 / 2 for i, x in enumerate(work.completions)
    )
    need = needed("tiny", case)
    assert need.operations == pytest.approx(plain + 12 * layers * hidden * pairs)
    assert (need.chunks, need.packed) == (read + written, 8 * read + written)
    assert need.padded == 16 * (20 + max(map(len, work.completions)))


def test_a_tokenizer_has_all_tokens_of_the_model():
    small = build_tokenizer(["one and two"] * 3, 300)
    tokenizer = padded_vocabulary(small, 2_000)
    assert (
        len(tokenizer) == 2_000
        and tokenizer("one and two").input_ids == small("one and two").input_ids
    )
    assert all(isinstance(x, str) for x in tokenizer.convert_ids_to_tokens(list(range(2_000))))
    assert (
        tokenizer.chat_template == small.chat_template
        and tokenizer.eos_token_id == small.eos_token_id
    )


def test_wheels_in_pieces_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(setup, "SITE", tmp_path / "place" / "site")
    data = bytes(torch.randint(256, (1000,), dtype=torch.uint8).tolist())
    source = tmp_path / "source"
    source.mkdir()
    wheel = source / "big-1.0-py3-none-any.whl"
    wheel.write_bytes(data)
    (source / "small-1.0-py3-none-any.whl").write_bytes(b"small")
    carry.cut(wheel, 300)
    assert not wheel.exists() and len(list(source.glob("big*"))) == 5
    last = source / "big-1.0-py3-none-any.whl.03"
    late = tmp_path / "late"
    late.mkdir()
    last.rename(late / last.name)
    sizes = carry.deal(source, 600)
    assert max(sizes) <= 600 and [path.name for path in source.iterdir() if path.is_file()] == []
    for number in range(1, len(sizes) + 1):
        found, lacking = setup.joined(source / str(number))
        assert lacking == [wheel.name] and wheel.name not in [path.name for path in found]
    found, lacking = setup.joined(late)  # the next call brings the last piece
    assert not lacking
    assert [path.name for path in found] == [
        "big-1.0-py3-none-any.whl",
        "small-1.0-py3-none-any.whl",
    ]
    assert found[0].read_bytes() == data


def test_settings_are_found_in_what_the_bench_says():
    settings = {"layout": "packed", "max_tokens_per_micro_batch": 8192}
    wanted = {**settings, "gradient_checkpointing": None}
    assert settings_in({"machine": {"rate": 1}, "settings": settings}) == wanted
    assert settings_in({"found": {"advice": {**settings, "bf16": True}}}) == wanted
    assert settings_in({"layout": "packed"}) is None
