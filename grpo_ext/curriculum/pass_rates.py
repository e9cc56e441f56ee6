"""How often each prompt is solved: counts by prompt."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from grpo_ext.files import write_atomically


@dataclass(frozen=True)
class PassCount:
    """Completions of one prompt.

    Args:
        prompt_id: as `prompt_id` makes it.
        right: completions that solved it; fractions where counts decay.
        samples: completions that were scored.
    """

    prompt_id: str
    right: float
    samples: float


def prompt_id(prompt: Any) -> str:
    """The same for the same prompt, in every step and run; 12 hexadecimal digits."""
    text = json.dumps(prompt, ensure_ascii=True, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def write_pass_rates(path: Path, counts: Iterable[PassCount]) -> None:
    """One JSON object a line, with `pass_rate` beside the counts; whole or not there."""
    rows = [{**asdict(count), "pass_rate": count.right / count.samples} for count in counts if count.samples]
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_pass_rates(path: Path) -> dict[str, PassCount]:
    """What `write_pass_rates` wrote, by prompt id.

    Raises:
        ValueError: naming the line that is none of it.
    """
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            count = PassCount(str(row["prompt_id"]), float(row["right"]), float(row["samples"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number}: not a line of pass rates ({error}). `grpo-ext probe` writes them."
            ) from None
        if not 0 <= count.right <= count.samples:
            raise ValueError(f"{path}:{number}: {count.right:g} of {count.samples:g} completions cannot be right.")
        found[count.prompt_id] = count
    return found
