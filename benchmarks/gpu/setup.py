"""Find out what the other parts need, and install what is missing.

Packages come from a registry or from a folder of wheels.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.child import SITE, VLLM, has_vllm, run_limited
from benchmarks.gpu.parts import Mode
from benchmarks.gpu.sheet import Sheet

SECONDS = {"package": 120, "vllm": 300}  # that an installation may take
# of constraints.txt: what comes with torch, and what types and documents need
LEFT_OUT = re.compile(
    r"torch|triton|nvidia|cuda|ruff|mypy|types-|build$|librt|ast.serialize|sphinx|furo|myst|"
    r"mdit|accessible|alabaster|babel"
    r"|beautifulsoup|docutils|imagesize|roman|snowball|soupsieve",
    re.IGNORECASE,
)
# releases of vLLM whose CUDA build is for a release of torch
VLLM_FOR = {"2.11": "0.25.1", "2.13": "0.29.0"}


def run(mode: Mode, sheet: Sheet) -> None:
    """Install what is missing and record what there is.

    A dry run only says what it would install.
    """
    if mode.wheels is not None:
        wheels, lacking = joined(mode.wheels)
        if lacking:
            sheet.fact("wheels that are not all here yet", ", ".join(lacking))
        else:
            install(
                ["--no-index", "--no-deps", *map(str, wheels)],
                f"{len(wheels)} wheels",
                SITE,
                mode,
                sheet,
            )
    missing = missing_packages()
    if missing and mode.wheels is None:
        install(["--no-deps", *missing], f"{len(missing)} packages", SITE, mode, sheet)
    if not has_vllm(mode) and mode.wheels is None:
        install_vllm(mode, sheet)
    about(mode, sheet)


def missing_packages() -> list[str]:
    """Return the missing requirements of `constraints.txt`, except torch and the tools for docs."""
    found = []
    for line in Path("constraints.txt").read_text(encoding="utf-8").splitlines():
        name = line.split("==")[0].strip()
        if "==" not in line or line.startswith("#") or LEFT_OUT.match(name):
            continue
        try:
            version(name)
        except PackageNotFoundError:
            if not (SITE / name.replace("-", "_")).exists():
                found.append(line.split("#")[0].split(";")[0].strip())
    return found


def install(words: list[str], what: str, target: Path, mode: Mode, sheet: Sheet) -> None:
    """Install into a separate folder with pip, within a time limit; record whether it succeeded."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-compile",
        "--upgrade",
        "--target",
        str(target),
        *words,
    ]
    _do(command, what, "package", target.parent / "pip.log", mode, sheet)


def install_vllm(mode: Mode, sheet: Sheet) -> None:
    """Make an environment for vLLM, which names its torch exactly."""
    wanted = VLLM_FOR.get(torch_release(), "0.29.0")
    _do(
        [sys.executable, "-m", "venv", str(VLLM)],
        "environment for vLLM",
        "package",
        VLLM.parent / "venv.log",
        mode,
        sheet,
    )
    words = ["install", "-q", f"vllm=={wanted}", "pytest", *missing_or_installed()]
    _do(
        [str(VLLM / "bin" / "python"), "-m", "pip", *words],
        f"vLLM {wanted}",
        "vllm",
        VLLM.parent / "pip.log",
        mode,
        sheet,
    )


def missing_or_installed() -> list[str]:
    """Return the package's own requirements, by name."""
    text = (
        Path("setup.cfg")
        .read_text(encoding="utf-8")
        .partition("install_requires =")[2]
        .partition("\n[")[0]
    )
    lines = [line.strip() for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "torch"))]


def _do(command: list[str], what: str, kind: str, log: Path, mode: Mode, sheet: Sheet) -> None:
    if mode.dry:
        sheet.fact(f"would install {what}", " ".join(command)[:160])
        return
    begun = time.monotonic()
    code = run_limited(command, log, SECONDS[kind])
    result = {0: "installed", None: f"not within {SECONDS[kind]} s"}.get(
        code, f"pip ended with {code}"
    )
    sheet.fact(what, result, seconds=round(time.monotonic() - begun, 1))
    if code:
        print(log.read_text(encoding="utf-8", errors="replace")[-1500:], flush=True)


def joined(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the wheels of a folder, and the names of wheels whose pieces are incomplete.

    Wheels in pieces (`NAME.whl.00`, `.01`, ...) are joined in another folder. Pieces from earlier
    calls stay there, so they may arrive over several calls; `NAME.whl.count` gives their number.
    """
    place = SITE.parent / "wheels"
    place.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if not (place / path.name).exists():
            (place / path.name).write_bytes(path.read_bytes())
    lacking = []
    for wheel in {path.with_suffix("") for path in place.glob("*.whl.*")}:
        count = wheel.with_name(f"{wheel.name}.count")
        pieces = [
            wheel.with_name(f"{wheel.name}.{n:02}")
            for n in range(int(count.read_text()) if count.exists() else 0)
        ]
        if not pieces or not all(piece.exists() for piece in pieces):
            lacking.append(wheel.name)
        elif not wheel.exists():
            with wheel.open("wb") as whole:
                for piece in pieces:
                    whole.write(piece.read_bytes())
    return sorted(place.glob("*.whl")), sorted(lacking)


def torch_release() -> str:
    """Return torch's release, such as "2.11"."""
    return ".".join(version("torch").split(".")[:2])


def about(mode: Mode, sheet: Sheet) -> None:
    """Record the GPU and the installed packages.

    A new process is asked, because it finds what has just been installed.
    """
    from benchmarks.gpu.child import environment, vllm_python

    def ask(code: str, python: str = sys.executable) -> str:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, env=environment(mode)
        )
        return (
            done.stdout.strip().splitlines()[-1]
            if done.returncode == 0 and done.stdout.strip()
            else "no"
        )

    cuda = (
        "torch.version.cuda or 'no CUDA', torch.cuda.get_device_name() if "
        "torch.cuda.is_available() else 'no GPU'"
    )
    sheet.fact("torch", ask(f"import torch; print(torch.__version__, {cuda})"))
    for name in ("transformers", "trl", "peft", "datasets", "accelerate"):
        sheet.fact(name, ask(f"import importlib.metadata as m; print(m.version('{name}'))"))
    sheet.fact(
        "vLLM",
        ask("import importlib.metadata as m, vllm; print(vllm.__version__)", vllm_python(mode)),
    )
    ours = ask(
        "from benchmarks.gpu.attention import kernel_is_there; print('yes' if "
        "kernel_is_there() else 'no')"
    )
    sheet.fact(
        "FlashAttention in torch (varlen_attn)", ours if not mode.dry else "emulated on the CPU"
    )
    sheet.fact(
        "FlashAttention's package",
        "yes" if find_spec("flash_attn") else "no: its release is source alone, hours to build",
    )
    sheet.fact(
        "kernels",
        "yes" if find_spec("kernels") else "no: its kernels come from the hub, not from a registry",
    )
