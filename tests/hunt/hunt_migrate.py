"""Settings of other projects, changed at random, are translated to a recipe or refused.

A recipe has the translated keys and no others, whatever the text of the file is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import strategies as st

from grpo_ext.migrate.draft import recipe_hints
from grpo_ext.migrate.draft_check import problems_of
from grpo_ext.migrate.read_source import read_source
from grpo_ext.migrate.recipe_text import recipe_text
from grpo_ext.migrate.translate import translate
from tests.support.foreign_settings import OPEN_R1, SWIFT, TRL, VERL
from tests.support.hunting import hunt

FILES = {"trl.sh": TRL, "open-r1.yaml": OPEN_R1, "ms-swift.sh": SWIFT, "verl.sh": VERL}
_MARKS = """
$ ${ } $(( )) ' " \\ ( ) [ ] { } = : # - -- ; | & < > ` * ~ % ! , 0 -1 1e999 nan null True <<EOF
'' [[ \x00 \x1b \ue001 \ue003{1+1} \ue008x\ue009 !!python/object ${A:-${B}} $((9*9)) 999999999989
"""
MARKS = [*_MARKS.split(), "\u2028", "\n", " "]


def a_recipe_or_a_refusal(name: str, changes: list[tuple[int, int, str]]) -> None:
    """A file with changes: where each begins, how many characters it replaces, and by what."""
    text = FILES[name]
    for begin, length, new in changes:
        place = begin % (len(text) + 1)
        text = text[:place] + new + text[place + length :]
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        path = Path(folder, name)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        try:
            source = read_source(path)
            draft, batch = translate(source)
        except ValueError:
            return
    written = recipe_text(source, draft, batch)
    assert all(character.isprintable() or character == "\n" for character in written)
    assert yaml.safe_load(written).keys() == draft.values.keys() <= recipe_hints().keys()
    problems_of(draft, batch.num_processes)


def test_settings_of_others():
    hunt(
        a_recipe_or_a_refusal,
        recipe_hints,
        name=st.sampled_from(sorted(FILES)),
        changes=st.lists(
            st.tuples(
                st.integers(0, 5000),
                st.integers(0, 40),
                st.sampled_from(MARKS) | st.text(max_size=8),
            ),
            max_size=8,
        ),
    )
