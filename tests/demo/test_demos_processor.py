"""The pretrained demo trains in the number type that the processor is fast in."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from tests.support.places import REPO


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="of x86 processors")
def test_without_avx_512_the_demo_trains_in_float32():
    code = (
        "from grpo_ext.demo.demos import PRETRAINED_DEMOS; print(PRETRAINED_DEMOS['real'].settings)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"},
        cwd=REPO,
    )
    assert out.stdout.strip() == "{'dtype': 'float32', 'bf16': False}"
