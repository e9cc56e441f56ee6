"""Shell scripts are read without running anything: words, variables, arrays, sums, and limits."""

from __future__ import annotations

import pytest

from grpo_ext.migrate.shell import MOST_WORDS, ScriptFault, read_commands


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read_commands(text)]


def unknown(text: str) -> dict[str, str | None]:
    (command,) = read_commands(text)
    return {word.text: word.unknown for word in command.words}


def test_quotes_comments_and_continued_lines():
    script = """#!/bin/bash
# it isn't a command
run --a 'single $X "quotes"' \\
    --b "double \\$X and \\"more\\"" --c x#1   # isn't one either
"""
    assert words(script) == [
        ["run", "--a", 'single $X "quotes"', "--b", 'double $X and "more"', "--c", "x#1"]
    ]


def test_each_word_has_its_line():
    (first, second) = read_commands("one \\\n  two\n\n# a comment\nthree  four\n")
    assert [word.line for word in first.words] == [1, 2]
    assert [word.line for word in second.words] == [5, 5]


def test_variables_set_to_literals_are_substituted():
    script = """
export MODEL=Qwen/Qwen3-8B
name="a b"
run $MODEL ${MODEL}-x "$name" $name ${GPUS:-8} ${1:-vllm} $HOME/data "$@"
"""
    assert words(script) == [
        ["run", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-x", "a b", "a", "b", "8", "vllm", "~/data"]
    ]


def test_an_empty_array_is_known():
    assert words('A=()\nrun "${A[@]}" --x 1') == [["run", "--x", "1"]]


def test_quotients_are_rounded_toward_zero():
    script = "A=-7\nB=-2\nrun $((7 / 2)) $((A / 2)) $((7 / B)) $((A / B))"
    assert words(script) == [["run", "3", "-3", "-3", "3"]]


def test_defaults_may_hold_variables():
    script = 'DATA=${DATA:-"${HOME}/verl"}\nFILE=${FILE:-"${DATA}/train.parquet"}\nrun $FILE'
    assert words(script) == [["run", "~/verl/train.parquet"]]


def test_what_the_file_does_not_set_is_unknown():
    script = 'run $DATA/x --lr=${LR} "$(pwd)/y" `date` plain ${A%/}'
    assert unknown(script) == {
        "run": None,
        "$DATA/x": "$DATA",
        "--lr=$LR": "$LR",
        "$(pwd)/y": "what the shell computes",
        "`date`": "what the shell computes",
        "plain": None,
        "${A%/}": "what the shell computes",
    }


def test_values_from_conditions_and_loops_are_unknown():
    script = """
A=1
if [ "$1" = x ]; then
    A=2
fi
for B in 1 2; do echo $B; done
f() { C=3; }
D=4
run $A $B $D
"""
    command = read_commands(script)[-1]
    assert [word.unknown for word in command.words] == [None, "$A", "$B", None]


@pytest.mark.parametrize(
    "line",
    [
        '[ "$BIG" ] && A=2',
        '[ "$BIG" ] || A=2',
        '[ "$BIG" ] &&\n\nA=2',
        '[ "$BIG" ] && A=(2)',
        '[ "$BIG" ] && export A=2',
        "(A=2)",
        "(cd x; A=2)",
        "( cd x\nA=2\n)",
        "echo | A=2",
        "case x in\nx) A=2;;\nesac",
    ],
)
def test_values_that_may_not_be_set_are_unknown(line):
    command = read_commands(f"A=1\n{line}\nB=3\nrun $A $B")[-1]
    assert [word.unknown for word in command.words] == [None, "$A", None]


def test_variables_after_a_function_are_known():
    for head in ("function f() {", "function f {", "f() {"):
        command = read_commands(f"A=1\n{head}\nA=2\n}}\nB=3\nrun $A $B")[-1]
        assert [word.unknown for word in command.words] == [None, "$A", None]


def test_a_literal_dollar_stays_one_in_a_variable():
    script = 'B=5\nA=\'costs $B or `date`\'\nC="$A"\nrun "$A" "$C" "x $A"'
    assert words(script) == [
        ["run", "costs $B or `date`", "costs $B or `date`", "x costs $B or `date`"]
    ]


def test_a_command_keeps_few_exported_variables():
    exports = "".join(f"export A{number}=1\n" for number in range(400))
    commands = read_commands(exports + "export NNODES=2\n" + "run\n" * 200)
    assert {len(command.environment) for command in commands} == {1}


def test_arrays_are_lists_of_words():
    script = """
ARGS=(
    --a 1   # one
    --b "two words"
)
ARGS+=(--c)
run "${ARGS[@]}"
"""
    assert words(script) == [["run", "--a", "1", "--b", "two words", "--c"]]


def test_sums_of_integers_are_computed():
    script = """
short=$((1024 * 2))
long=$((1024 * 8))
run $(((short + long) * 2)) n=$((short+${long})) "$((7 / 2 - 1))" $((UNSET + 1))
"""
    (command,) = read_commands(script)
    assert [word.text for word in command.words][:4] == ["run", "20480", "n=10240", "2"]
    assert command.words[4].unknown is not None


def test_sums_cannot_take_time_or_memory():
    for text in ("9**9**9", "9" * 150, "(" * 90 + "1" + ")" * 90, "1/0", "2*" * 70 + "2"):
        (command,) = read_commands(f"run $(({text}))")
        assert command.words[0].text == "run"


def test_here_documents_are_no_commands():
    script = "cat > x.py << 'EOF'\nimport os; it isn't shell\nrun --a 1\nEOF\nrun --b 2\n"
    assert words(script) == [["cat"], ["run", "--b", "2"]]


def test_variables_in_front_of_a_command_are_its_environment():
    (command,) = read_commands("export NNODES=2\nCUDA=0,1 NPROC_PER_NODE=8 \\\nswift rlhf > log\n")
    assert {name: word.text for name, word in command.environment.items()} == {
        "NNODES": "2",
        "CUDA": "0,1",
        "NPROC_PER_NODE": "8",
    }
    assert [word.text for word in command.words] == ["swift", "rlhf"]


def test_nothing_is_run(tmp_path):
    mark = tmp_path / "mark"
    script = (
        f"touch {mark}\nA=$(touch {mark})\nrun `touch {mark}` $(touch {mark}) $A <(touch {mark})"
    )
    read_commands(script)
    assert not mark.exists()


@pytest.mark.parametrize(
    "script",
    [
        "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40 + "run $A",
        "A=" + "x" * 60_000 + "\nrun" + " $A" * 1000,
        "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'run "${A[@]}"',
        "run" + " a" * (MOST_WORDS + 1),
        "run 'never closed",
    ],
)
def test_scripts_that_would_take_too_much_are_refused(script):
    with pytest.raises(ScriptFault):
        read_commands(script)
