"""Check the reward `code`: isolation on this machine, limits, and the rows' tests."""

from collections.abc import Sequence
from typing import Any

from grpo_ext.common.columns import has_task
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.rendered_rows import MAX_SHARE, text_of_prompt
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.code.asserts import called_functions, parse_asserts, tests_as_list
from grpo_ext.rewards.code.memory_group import parent_of_groups
from grpo_ext.rewards.code.sandbox import Job, Limits, MachineFault, NoIsolation, run
from grpo_ext.rewards.guard import unguarded
from grpo_ext.rewards.reward import Reward

KEY = "reward_funcs"


def check_code(
    rewards: Sequence[Any], rows: Sequence[Row], reward_timeout: float, findings: Findings
) -> None:
    """Check the time limits, the isolation and the tests of the rewards named `code`.

    It is a problem if the limits are invalid, if a row's time limit exceeds `reward_timeout`, or if
    programs cannot be isolated on this machine. Notes are added on how the memory of programs is
    limited, on `isolation: none`, on a trial program that failed for another reason, on tests that
    cannot be used, on prompts that do not name the function to write, and on asserts that programs
    can cheat. If the run will be on another machine, isolation and memory are not checked.

    Args:
        rewards: the rewards of the run.
        rows: the first rows, with their `tests`.
        reward_timeout: the time limit of rewards, in seconds per row.
        findings: receives the problems and notes.
    """
    for guarded in rewards:
        reward = unguarded(guarded)
        if not isinstance(reward, Reward) or reward.registration.name != "code":
            continue
        options = reward.options
        isolated = options["isolation"] != "none"
        try:
            limits = Limits(options["seconds"], options["megabytes"], isolated)
        except ValueError as error:
            findings.problem(error, KEY)
            continue
        if limits.row_seconds > reward_timeout:
            findings.problem(
                f"code: with `seconds: {limits.seconds:g}`, a row may take "
                f"{limits.row_seconds:.1f} seconds, which is more than "
                f"`reward_timeout: {reward_timeout:g}` allows, so it would not be scored. Set "
                f"`reward_timeout: {limits.row_seconds + 0.1:.1f}`, or lower `seconds`.",
                KEY,
            )
        check_isolation(limits, findings)
        own = [row for row in rows if has_task(row, reward.tasks)]
        check_tests(own, options["cheatable_asserts"] == "refuse", findings)


def check_isolation(limits: Limits, findings: Findings) -> None:
    """Check isolation by running an empty program, and note how the memory of programs is limited.

    With `isolation: none`, only the risk is noted. With isolation, nothing is checked if the run
    will be on another machine. It is a problem if the program cannot be isolated, and only a note
    if it fails for another reason (`MachineFault`).
    """
    if not limits.isolated:
        findings.note(
            "code: with `isolation: none`, the model's programs run with your permissions.", KEY
        )
        return
    if findings.elsewhere:
        return
    try:
        run(Job(""), limits)
    except NoIsolation as error:
        findings.problem(error, KEY)
        return
    except MachineFault as error:
        findings.note(error, KEY)
        return
    if parent_of_groups() is None:
        findings.note(
            "code: the memory of programs is limited by rlimits, because no cgroup with a memory "
            "limit can be created here. Rlimits do not count memory that the kernel uses for a "
            "program, for example when it creates many small files.",
            KEY,
        )
    else:
        findings.note("code: the memory of programs is limited by a cgroup.", KEY)


def check_tests(rows: Sequence[Row], refuses_cheatable: bool, findings: Findings) -> None:
    """Add notes on tests that cannot be used, asserts that programs can cheat, and unclear prompts.

    Prompts are unclear if most of them name none of the functions that their tests call.

    Args:
        rows: the rows, with their `tests`.
        refuses_cheatable: whether the reward leaves rows with cheatable asserts unscored.
        findings: receives the notes.
    """
    unusable: list[str] = []
    cheatable: list[str] = []
    unnamed: list[int] = []  # numbers of rows whose prompt names no function of their tests
    for number, row in enumerate(rows, 1):
        try:
            tests = tests_as_list(row.get("tests"))
            if all(isinstance(test, str) for test in tests):
                cheatable += parse_asserts(tuple(map(str, tests))).cheatable
                if not names_functions(text_of_prompt(row["prompt"]), tests):
                    unnamed.append(number)
        except ValueError as error:
            unusable.append(f"row {number}: {error}")
    if len(unnamed) > MAX_SHARE * len(rows):
        findings.note(
            f"code: the prompts of {len(unnamed)} of the first {len(rows)} rows, such as row "
            f"{unnamed[0]}, do not name the function that their tests call, so a correct "
            'program may fail. Show a test in user_prompt, for example with "{text}\\n{tests[0]}".',
            KEY,
        )
    if unusable:
        findings.note(
            f"code: the tests of {len(unusable)} of the first {len(rows)} rows cannot be used, so "
            f"these rows stay unscored. The first is {unusable[0]}",
            KEY,
        )
    if cheatable:
        consequence = "To leave such rows unscored, use {name: code, cheatable_asserts: refuse}."
        if refuses_cheatable:
            consequence = "Such rows stay unscored, because of `cheatable_asserts: refuse`."
        findings.note(
            f"code: {len(cheatable)} of the asserts in the first {len(rows)} rows compare objects "
            "that the program under test defines, so it could cheat, for example with its own "
            f"`__eq__`. {consequence} The first such statement: assert {cheatable[0]:.80}",
            KEY,
        )


def names_functions(prompt: str, tests: Sequence[object]) -> bool:
    """Return whether a prompt names a function that the tests call.

    Also return `True` if the tests call no function, or cannot be parsed.
    """
    try:
        called = called_functions(parse_asserts(tuple(map(str, tests))))
    except ValueError:
        return True
    return not called or any(name in prompt for name in called)
