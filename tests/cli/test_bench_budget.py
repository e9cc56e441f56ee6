"""`grpo-ext bench` keeps to its minutes, whatever a step takes, and says what it left out.

A clock that moves with the tokens that the model reads stands for slow and fast machines.
"""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grpo_ext.bench import measure
from grpo_ext.bench.budget import Budget, BudgetSpent
from grpo_ext.bench.measure import Bench, Measurement, with_groups
from grpo_ext.bench.search import SLOWER, Search
from grpo_ext.cli import bench as command
from grpo_ext.cli.main import main
from grpo_ext.preflight.checkpointing import Checkpointing
from grpo_ext.recipe.batch import Batch
from grpo_ext.recipe.load import load_recipe
from grpo_ext.trainer import phases
from tests.support.bench_words import SMALL, words
from tests.support.forked import Forked

STEP = SMALL["per_device_train_batch_size"] * SMALL["gradient_accumulation_steps"]
GROUP = SMALL["num_generations"]


class Clock:
    """Seconds that pass with the tokens that a model reads."""

    def __init__(self, seconds_per_token):
        self.seconds_per_token = seconds_per_token
        self.now = 0.0
        self.longest_pass = 0.0

    def __call__(self):
        return self.now

    perf_counter = __call__

    def before(self, module, inputs):
        if isinstance(module, torch.nn.Embedding):
            seconds = self.seconds_per_token * inputs[0].numel()
            self.now += seconds
            self.longest_pass = max(self.longest_pass, seconds)


@pytest.fixture
def clock_of(monkeypatch):
    """Makes a clock by which phases are measured as well."""
    hooks = []

    def make(seconds_per_token):
        clock = Clock(seconds_per_token)
        hooks.append(torch.nn.modules.module.register_module_forward_pre_hook(clock.before))
        monkeypatch.setattr(phases, "time", clock)
        return clock

    yield make
    for hook in hooks:
        hook.remove()


class Results:
    """A display that keeps what it shows."""

    def __init__(self):
        self.lines = []
        self.tasks = []

    def result(self, line):
        self.lines.append(line)

    def begin(self, task):
        self.tasks.append(task)


def bench_by(clock, minutes, model, **more):
    """The exit code and the lines of the command, by a clock."""
    results = Results()
    args = SimpleNamespace(config="countdown/tiny", overrides=words(model, **more), json=False)
    code = command.measure(args, Budget(60 * minutes, clock), results)
    return code, results


@pytest.mark.parametrize("seconds_per_token", [0.06, 0.2])
def test_a_slow_step_is_measured_with_fewer_groups_and_the_time_is_kept(
    tiny_folder, clock_of, seconds_per_token
):
    clock = clock_of(seconds_per_token)
    code, results = bench_by(clock, 2, tiny_folder)
    assert code == 0
    assert clock.now <= 120 + clock.longest_pass
    text = "\n".join(results.lines)
    assert f"of {STEP} completions per step" in text
    assert f"of {STEP} completions: seconds" in text
    assert "not tried, because the time was over: " in text and "settings measured" in text
    own = next(line for line in results.lines if line.startswith("recipe: "))
    assert float(own.split()[-4]) > 0
    assert results.tasks[0] == "reading the recipe"


def test_a_fast_machine_measures_the_recipe_as_it_is_and_every_candidate(tiny_folder, clock_of):
    clock = clock_of(1e-6)
    bench = Bench(load_recipe("countdown/tiny", words(tiny_folder), 1), Budget(120, clock))
    bench.as_it_stands()
    assert bench.sizes == bench.batch and bench.warm
    assert bench.num_completions == STEP
    search = Search(bench)
    tried = [settings for settings, _ in search.run()]
    assert search.not_tried == []
    assert {settings["layout"] for settings in tried} == {"auto", "chunks", "packed", "padded"}
    assert {settings["gradient_checkpointing"] for settings in tried} == {True, False}


def test_a_step_without_signal_does_not_make_the_training_phase_small(tiny_folder, clock_of):
    """The untrained model gets no reward, so hardly a completion is trained on as the recipe is."""
    clock = clock_of(0.002)
    bench = Bench(load_recipe("countdown/tiny", words(tiny_folder), 1), Budget(120, clock))
    assert bench.as_it_stands()["frac_reward_zero_std"] == 1
    before = bench.num_completions
    next(Search(bench).run())
    assert before < bench.num_completions == STEP
    assert clock.now < 120


def test_a_budget_without_time_for_one_step_is_refused(tiny_folder, clock_of):
    clock = clock_of(10.0)
    with pytest.raises(ValueError, match="with one group, so nothing was measured"):
        bench_by(clock, 2, tiny_folder)


def test_checkpointing_that_nobody_set_is_that_of_the_whole_step(
    tiny_folder, clock_of, monkeypatch
):
    """Although a step with fewer groups would need less memory."""
    choose = Checkpointing.choose
    sizes = []

    def on_if_large(size, v, batch, **more):
        sizes.append(batch.per_device_train_batch_size)
        on = batch.per_device_train_batch_size == SMALL["per_device_train_batch_size"]
        return replace(choose(size, v, batch, **more), on=on)

    monkeypatch.setattr(Checkpointing, "choose", on_if_large)
    given = words(tiny_folder, gradient_checkpointing="null")
    bench = Bench(load_recipe("countdown/tiny", given, 1), Budget(120, clock_of(0.2)))
    bench.as_it_stands()
    assert bench.sizes.per_device_train_batch_size == GROUP < sizes[0]
    search = Search(bench)
    assert bench.gradient_checkpointing is search.own["gradient_checkpointing"] is True
    assert False in {settings["gradient_checkpointing"] for settings in search.candidates()}


def test_the_command_refuses_minutes_that_are_not_positive(capsys):
    for minutes in ("0", "-1", "inf", "nan", "two"):
        with pytest.raises(SystemExit) as stop:
            main(["bench", "--config", "countdown/tiny", "--minutes", minutes])
        assert stop.value.code == 2
    assert "--minutes" in capsys.readouterr().err


def bench_in(folder, *more):
    """The command in a process of its own."""
    given = words(folder, max_completion_length=64)
    return Forked(main, ["bench", "--config", "countdown/tiny", *given, "--minutes", "600", *more])


def test_ctrl_c_ends_with_the_best_so_far_and_exit_code_130(tiny_folder):
    process = bench_in(tiny_folder)
    process.wait_for("\nrecipe: auto")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    printed = process.printed
    assert "not tried, because of Ctrl-C: " in printed
    assert "settings measured" in printed
    assert "save a checkpoint" not in printed and "Traceback" not in printed


def test_ctrl_c_before_the_first_figures_says_that_there_are_none(tiny_folder):
    process = bench_in(tiny_folder)
    process.wait_for("left: the recipe as it is written")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.printed.endswith("grpo-ext: interrupted before anything was measured\n")


def test_after_ctrl_c_json_holds_what_was_measured(tiny_folder):
    process = bench_in(tiny_folder, "--json")
    process.wait_for("left: chunks, one micro-batch")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    found = json.loads(process.printed[process.printed.index("{\n") :])
    assert found["interrupted"] and found["not_tried"]
    assert found["training_phase"][0]["layout"] == "auto"
    assert found["completions_per_step"] == {
        "recipe": STEP,
        "as_it_stands": STEP,
        "training_phase": STEP,
    }


def test_an_interruption_that_python_ignores_ends_the_next_pass():
    budget = Budget(60)
    budget.check()
    budget.interrupt()
    assert budget.left == 0
    with pytest.raises(KeyboardInterrupt):
        budget.check()


def test_a_budget_is_spent_by_its_clock():
    clock = Clock(0)
    budget = Budget(60, clock)
    clock.now = 50.0
    budget.check()
    assert budget.left == 10 and budget.spent == 50
    with pytest.raises(BudgetSpent):
        budget.check(reserve=10)


def test_fewer_groups_keep_the_micro_batch_at_most_as_large():
    batch = Batch(
        per_device_train_batch_size=16,
        num_processes=1,
        gradient_accumulation_steps=4,
        num_generations=8,
        steps_per_generation=8,
    )
    for groups in (1, 2, 3, 5):
        smaller = with_groups(batch, groups)
        assert smaller.completions == smaller.completions_per_step == 8 * groups
        assert smaller.per_device_train_batch_size <= 16 and smaller.fits


# ---- the order, with seconds of a table


class Table:
    """A bench whose training phase takes the seconds that `seconds_of` returns for settings."""

    def __init__(self, seconds_of, device="cpu", checkpointing=False, **recipe):
        self.seconds_of = seconds_of
        self.device = device
        self.gradient_checkpointing = checkpointing
        self.clock = Clock(0)
        self.budget = Budget(120, self.clock)
        self.layout = "chunks"
        self.num_completions = 64
        self.sequence_lengths = [100] * 64
        self.batch = SimpleNamespace(per_device_train_batch_size=32, num_generations=8)
        flat = {"layout": "auto", "max_tokens_per_micro_batch": None, **recipe}
        self.recipe = SimpleNamespace(flat=flat)
        self.room = True
        self.runs = []

    def fits_without_checkpointing(self):
        return self.room

    def enlarge(self, measurement):
        return False

    def training_phase(self, settings):
        self.runs.append(settings)
        seconds = self.seconds_of(settings)
        if seconds is None:
            return None
        self.clock.now += seconds
        return Measurement(seconds, 1.0, None, 1.0)


def short(settings):
    """A name of settings for comparisons."""
    name = settings["layout"]
    if settings["max_tokens_per_micro_batch"]:
        name += f" {settings['max_tokens_per_micro_batch']}"
    if settings["gradient_checkpointing"]:
        name += " checkpointing"
    return name


def tried(bench):
    search = Search(bench)
    return [short(settings) for settings, _ in search.run()], search


def test_a_cpu_tries_packed_rows_last_of_the_layouts():
    names, search = tried(Table(lambda settings: 1.0))
    assert names == [
        "auto",
        "chunks",
        "chunks 4096",
        "chunks 2048",
        "chunks 1024",
        "padded",
        "packed",
        "chunks checkpointing",
    ]
    assert search.not_tried == [] and search.cannot_win == []


def test_a_gpu_tries_padding_last_of_the_layouts():
    names, _ = tried(Table(lambda settings: 1.0, device="cuda"))
    assert names == [
        "auto",
        "chunks",
        "chunks 4096",
        "chunks 2048",
        "chunks 1024",
        "packed",
        "padded",
        "chunks checkpointing",
    ]


def test_a_recipe_with_checkpointing_is_tried_without_it_first_of_all():
    def seconds_of(settings):
        return 1.0 if settings["gradient_checkpointing"] else 0.7

    names, search = tried(Table(seconds_of, checkpointing=True))
    assert names[:3] == ["auto checkpointing", "chunks checkpointing", "chunks"]
    assert not any("checkpointing" in name for name in names[2:])
    assert short(search.best) == "chunks"


def test_without_memory_for_it_checkpointing_stays_on():
    bench = Table(lambda settings: 1.0, checkpointing=True)
    bench.room = False
    names, search = tried(bench)
    assert all("checkpointing" in name for name in names)
    assert search.left_out_for_memory and search.not_tried == []


def test_where_nothing_fits_checkpointing_and_small_micro_batches_are_tried():
    def seconds_of(settings):
        small = settings["max_tokens_per_micro_batch"] == 1024
        return 1.0 if small and settings["gradient_checkpointing"] else None

    names, search = tried(Table(seconds_of, device="cuda"))
    assert names[-1] == "chunks 1024 checkpointing"
    assert short(search.best) == "chunks 1024 checkpointing"
    with pytest.raises(ValueError, match="No layout that this recipe can use fits into memory"):
        tried(Table(lambda settings: None, device="cuda"))


def test_other_layouts_are_tried_where_that_of_the_recipe_is_refused():
    def seconds_of(settings):
        if settings["layout"] != "padded":
            raise ValueError("needs rotary positions")
        return 1.0

    names, search = tried(Table(seconds_of))
    assert "padded" in names and short(search.best) == "padded"
    assert search.refused_layouts.keys() == {"auto", "chunks", "packed"}

    def refused(settings):
        raise ValueError("no such attention")

    with pytest.raises(ValueError, match=r"No layout can be used .* no such attention"):
        tried(Table(refused))


def test_a_recipe_that_does_not_fit_into_memory_is_refused(tiny_folder, clock_of, monkeypatch):
    def out_of_memory(trainer, limit):
        raise torch.OutOfMemoryError("16 GiB")

    monkeypatch.setattr(measure, "train_silently", out_of_memory)
    bench = Bench(load_recipe("countdown/tiny", words(tiny_folder), 1), Budget(120, clock_of(0.1)))
    with pytest.raises(ValueError, match=r"ran out of GPU memory\. Lower"):
        bench.as_it_stands()


def test_limits_below_a_slow_one_are_left_out_and_said():
    def seconds_of(settings):
        budget = settings["max_tokens_per_micro_batch"]
        return {4096: 1.0, 2048: 1.01 * SLOWER}.get(budget, 2.0)

    for device in ("cpu", "cuda"):
        names, search = tried(Table(seconds_of, device=device))
        assert "chunks 2048" in names and "chunks 1024" not in names
        assert [short(settings) for settings in search.cannot_win] == ["chunks 1024"]
        assert search.not_tried == []


def test_no_limit_is_tried_after_one_that_is_slower_than_none():
    def seconds_of(settings):
        return 1.3 if settings["max_tokens_per_micro_batch"] else 1.0

    names, search = tried(Table(seconds_of))
    assert names == ["auto", "chunks", "chunks 4096", "padded", "packed", "chunks checkpointing"]
    assert [short(settings) for settings in search.cannot_win] == ["chunks 2048", "chunks 1024"]


def test_one_micro_batch_is_not_measured_twice():
    bench = Table(lambda settings: 1.0)
    bench.batch.per_device_train_batch_size = 64
    names, search = tried(bench)
    assert names[:2] == ["auto", "chunks 4096"] and "chunks" not in names
    assert search.best == search.own


def test_limits_are_tried_with_another_layout_if_it_is_the_fastest():
    names, _ = tried(Table(lambda s: 0.5 if s["layout"] == "packed" else 1.0, device="cuda"))
    assert names[5:] == [
        "packed",
        "padded",
        "packed 4096",
        "packed 2048",
        "packed 1024",
        "packed checkpointing",
    ]


def test_when_time_is_short_the_recipe_and_the_fastest_are_repeated_and_others_named():
    bench = Table(lambda settings: 17.0 if settings["layout"] == "chunks" else 18.0)
    names, search = tried(bench)
    assert names == ["auto", "chunks", "chunks 4096", "chunks 2048"]
    assert [short(settings) for settings in bench.runs] == [*names, "auto", "chunks"]
    assert bench.clock.now <= 120 and search.repeated
    assert [short(settings) for settings in search.not_tried] == [
        "chunks 1024",
        "padded",
        "packed",
        "chunks checkpointing",
    ]


def test_time_for_two_runs_is_for_two_settings():
    bench = Table(lambda settings: 50.0)
    names, search = tried(bench)
    assert names == ["auto", "chunks"] and len(bench.runs) == 2 and not search.repeated
    assert search.best == search.own
