"""Run folders written by hand, and what a report's page holds of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from html.parser import HTMLParser
from itertools import zip_longest
from pathlib import Path

from grpo_ext.environments.transcript import as_text
from grpo_ext.observe.jsonl import JsonLines

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>{{SCRIPT}}\ud800 "
    "\u2028 <!-- "
)


def sample(step, text, mode="train", group=0, prompt="Use 3, 4 to make 7.", **more):
    prompt_id = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()[:12]
    return {
        "step": step,
        "mode": mode,
        "dataset": mode,
        "prompt_id": prompt_id,
        "group": group,
        "prompt": [{"role": "user", "content": prompt}],
        "text": text,
        "rewards": {"countdown": 0.0},
        "reward": 0.0,
        "advantage": None if mode == "eval" else 0.0,
        "finish_reason": "stop",
        "length": 3,
        "columns": {"nums": [3, 4], "target": 7},
        **more,
    }


def write_run(folder: Path, rows, metrics=({"step": 1, "reward": 0.5},)) -> Path:
    JsonLines(folder / "samples.jsonl").append(rows)
    JsonLines(folder / "metrics.jsonl").append(list(metrics))
    return folder


class Page(HTMLParser):
    """What a browser would see.

    Tags with their attributes, and the content of each script by its id.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._script = [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs) if tag == "script" else None

    def handle_data(self, data):
        if self._script is not None:
            self.scripts.append((self._script, data))
            self._script = None

    def block(self, name):
        content = next(data for attrs, data in self.scripts if attrs.get("id") == name)
        return json.loads(gzip.decompress(base64.b64decode(content, validate=True)))


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def played(step, *said, more=(), **settings):
    """A line of an episode.

    What the model and its environment said in turn, and what else each message has.
    """
    messages = [
        {"role": "user" if i % 2 else "assistant", "content": text} for i, text in enumerate(said)
    ]
    messages = [
        {**message, **extra} for message, extra in zip_longest(messages, more, fillvalue={})
    ]
    return sample(step, as_text(messages), messages=messages, **settings)
