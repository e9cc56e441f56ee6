"""Chinese regulated verse: the pattern of a poem, its tonal faults, and its rhyme.

    judge(["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去", "一棹烟波去未迷"])

The module `text` finds the lines of a poem, `characters` looks up tones and rhymes, `forms` builds
the patterns, and `judge` compares a poem with them.
"""

from grpo_ext.rewards.poem.judge import Fault, Verdict, judge
from grpo_ext.rewards.poem.text import last_line

__all__ = ["Fault", "Verdict", "judge", "last_line"]
