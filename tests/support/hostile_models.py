"""What may lie in a model folder that somebody else has written.

Files that are plain, and hostile by what they say.
"""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.hostile_folders import FLAG, RunsCode, archive_of_zeros


def set_keys(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def endless_header(model: Path) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{")


def lying_header(model: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * 64)


def overflowing_header(model: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [2**33, 2**33], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def deep_header(model: Path) -> None:
    text = b'{"a": ' + b"[" * 200_000
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)


def index_out(model: Path) -> None:
    index = {"weight_map": {"a": "../private/model.safetensors"}}
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps(index))


def pickled_code(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with zipfile.ZipFile(model / "pytorch_model.bin", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(RunsCode(model / FLAG)))
        file.writestr("archive/version", "3\n")


def plain_pickle(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(RunsCode(model / FLAG)))


def packed_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(archive_of_zeros(2048))


def code_of_the_model(model: Path) -> None:
    (model / "evil.py").write_text(f"open({str(model / FLAG)!r}, 'w')\n")
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    set_keys(model / "config.json", model_type="evil", auto_map=names)


def code_of_the_tokenizer(model: Path) -> None:
    (model / "evil.py").write_text(f"open({str(model / FLAG)!r}, 'w')\n")
    names = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    set_keys(model / "tokenizer_config.json", tokenizer_class="Evil", auto_map=names)


def many_layers(model: Path) -> None:
    set_keys(model / "config.json", num_hidden_layers=10**9, layer_types=None)


def wide_layers(model: Path) -> None:
    set_keys(model / "config.json", hidden_size=2**40, intermediate_size=2**40)


def wide_vocabulary(model: Path) -> None:
    set_keys(model / "config.json", vocab_size=2**45)


def long_positions(model: Path) -> None:
    set_keys(model / "config.json", max_position_embeddings=2**50)


def deep_config(model: Path) -> None:
    (model / "config.json").write_text('{"a": ' * 200_000)


def odd_numbers(model: Path) -> None:
    (model / "config.json").write_text('{"hidden_size": NaN, "vocab_size": ' + "9" * 4000 + "}")


TEMPLATES = {
    "endless_template": (
        "{% for a in range(99999) %}"
        "{% for b in range(99999) %}"
        "{% for c in range(99999) %}"
        "{% endfor %}{% endfor %}{% endfor %}x"
    ),
    "large_template": "{{ 'x' * 10 ** 12 }}",
    "growing_template": (
        "{% set ns = namespace(s='x') %}"
        "{% for a in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}"
    ),
    "calling_template": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "reaching_template": (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}{{ messages.__init__.__globals__ }}"
    ),
    "deep_template": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
}


def template(name: str) -> Callable[[Path], None]:
    def write(model: Path) -> None:
        (model / "chat_template.jinja").write_text(TEMPLATES[name])

    write.__name__ = name
    return write


def slow_pattern(model: Path) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    pattern = {"Regex": r"(([\s\S]+)+)+\x00"}
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": pattern,
        "behavior": "Isolated",
        "invert": False,
    }
    path.write_text(json.dumps(content))


def growing_normalizer(model: Path) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    grow = {"type": "Replace", "pattern": {"Regex": "."}, "content": "xxxxxxxxxx"}
    content["normalizer"] = {"type": "Sequence", "normalizers": [grow] * 12}
    path.write_text(json.dumps(content))


def deep_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"model": ' * 100_000)


def truncated_tokenizer(model: Path) -> None:
    text = (model / "tokenizer.json").read_bytes()
    (model / "tokenizer.json").write_bytes(text[: len(text) // 2])


MODEL_KINDS: list[Callable[[Path], None]] = [
    endless_header,
    lying_header,
    overflowing_header,
    deep_header,
    index_out,
    pickled_code,
    plain_pickle,
    packed_weights,
    code_of_the_model,
    code_of_the_tokenizer,
    many_layers,
    wide_layers,
    wide_vocabulary,
    long_positions,
    deep_config,
    odd_numbers,
    slow_pattern,
    growing_normalizer,
    deep_tokenizer,
    truncated_tokenizer,
    *map(template, TEMPLATES),
]
