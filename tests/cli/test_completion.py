"""The completion script, used by a real shell."""

from __future__ import annotations

import subprocess

import pytest

from grpo_ext.cli.main import SUBCOMMANDS, main


@pytest.fixture(scope="module")
def script():
    from grpo_ext.cli.completion import script

    return script("bash")


def completed(script, folder, *words):
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_grpo_ext; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    out = subprocess.run(["bash"], input=f"{script}\n{asked}", capture_output=True, text=True, cwd=folder)
    assert out.returncode == 0 and out.stderr == ""
    return out.stdout.split()


def test_commands_options_keys_and_files_are_completed(script, tmp_path):
    (tmp_path / "mine.yaml").touch()
    assert set(SUBCOMMANDS) <= set(completed(script, tmp_path, "grpo-ext", ""))
    assert completed(script, tmp_path, "grpo-ext", "pl") == ["plan"]
    assert completed(script, tmp_path, "grpo-ext", "train", "--learning_ra") == ["--learning_rate"]
    assert completed(script, tmp_path, "grpo-ext", "check", "--max_target") == ["--max_target"]
    assert completed(script, tmp_path, "grpo-ext", "check", "--elsew") == ["--elsewhere"]
    assert completed(script, tmp_path, "grpo-ext", "train", "--config", "mi") == ["mine.yaml"]
    assert completed(script, tmp_path, "grpo-ext", "rewards", "sc") == ["score"]
    assert completed(script, tmp_path, "grpo-ext", "rewards", "score", "--inp") == ["--input"]


def test_what_an_option_takes_is_completed(script, tmp_path):
    assert completed(script, tmp_path, "grpo-ext", "completion", "z") == ["zsh"]
    assert completed(script, tmp_path, "grpo-ext", "rewards", "show", "accu") == ["accuracy"]
    assert completed(script, tmp_path, "grpo-ext", "explain", "poem_y") == ["poem_yun"]
    assert completed(script, tmp_path, "grpo-ext", "explain", "leng") == []  # explains nothing
    assert completed(script, tmp_path, "grpo-ext", "train", "--bf16", "true", "--learning_ra") == ["--learning_rate"]


@pytest.mark.parametrize(("shell", "start"), [("zsh", "#compdef grpo-ext\n"), ("fish", "#")])
def test_other_shells_know_the_same_words(shell, start, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert out.startswith(start)
    assert all(word in out for word in (*SUBCOMMANDS, "learning_rate", "max_target", "accuracy"))
