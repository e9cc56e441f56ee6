"""Collect the wheels that `setup` would install, for a machine without a network.

    python -m benchmarks.gpu.carry FOLDER [--have FILE] [--torch 2.11] [--python 3.12] [--mib 50]
        [--vllm] [--quick]

Run it where a package registry can be reached. `FILE` lists the packages that the other machine
already has, one per line. The wheels are written to FOLDER/1, FOLDER/2 and so on, each small enough
to be sent (`--mib`); larger wheels are split. Send one folder after the other, and run `python -m
benchmarks.gpu --parts setup --wheels FOLDER/1` there for each; the call for the last one installs
everything. `--vllm` adds vLLM and what it needs besides torch, except kernels that 16-bit text
generation does not use.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks.gpu.setup import LEFT_OUT, VLLM_FOR

PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 24, 17)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
MACHINE = {
    "platform_machine": "x86_64",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "extra": "",
}
MIB = 2**20
# vLLM asks for these, and text generation does without: kernels for other number types, sound,
# pictures, tools for tracing
NOT_NEEDED = re.compile(
    r"torch|triton|nvidia|nvtx|flashinfer|opentelemetry|opencv|ray|cupy|soundfile|librosa|av$|"
    r"tilelang|quack|humming"
    r"|tokenspeed|pynvvideocodec"
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--have", type=Path, help="a file with the names of packages that are there, one a line"
    )
    parser.add_argument(
        "--torch", default="2.11", choices=list(VLLM_FOR), help="the release that is there"
    )
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--mib", type=float, default=50.0, help="the most that one folder holds")
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="say what would be fetched, and fetch nothing"
    )
    args = parser.parse_args()
    have = set(map(plain, args.have.read_text(encoding="utf-8").split())) if args.have else set()
    wanted = [
        line
        for line in pinned()
        if plain(line.split("==")[0]) not in have and not LEFT_OUT.match(line)
    ]
    if args.quick:
        print(
            *wanted,
            *([f"vllm=={VLLM_FOR[args.torch]} and what it needs"] if args.vllm else []),
            sep="\n",
        )
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for line in wanted:
        fetch(line, args.folder, args.python)
    if args.vllm:
        fetch_with_needs(
            f"vllm=={VLLM_FOR[args.torch]}",
            args.folder,
            args.python,
            have | {plain(x.split("==")[0]) for x in wanted},
        )
    for wheel in list(args.folder.glob("*.whl")):
        cut(wheel, int(args.mib * MIB))
    for number, size in enumerate(deal(args.folder, int(args.mib * MIB)), 1):
        print(f"{args.folder / str(number)}: {size / MIB:.0f} MiB")


def plain(name: str) -> str:
    """Return a package's name in the normalized form by which registries compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> list[str]:
    """Return the requirements of `constraints.txt`."""
    lines = (
        line.split("#")[0].split(";")[0].strip()
        for line in Path("constraints.txt").read_text(encoding="utf-8").splitlines()
    )
    return [line for line in lines if "==" in line]


def fetch(requirement: str, folder: Path, python: str) -> Path | None:
    """Download one wheel and return its path.

    If there is none, print a message and return `None`.
    """
    before = set(folder.glob("*.whl"))
    words = [
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        python,
        "--implementation",
        "cp",
    ]
    words += [word for platform in PLATFORMS for word in ("--platform", platform)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "-d", str(folder), requirement],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        print(
            f"{requirement}: "
            f"{done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no wheel'}"
        )
        return None
    return next(iter(set(folder.glob("*.whl")) - before), None)


def fetch_with_needs(requirement: str, folder: Path, python: str, have: set[str]) -> None:
    """Download a wheel and, one by one, the wheels that it requires and `have` lacks."""
    waiting = [requirement]
    seen = set(have)
    while waiting:
        wanted = waiting.pop(0)
        seen.add(plain(re.split(r"[\s<>=!~\[(;]", wanted)[0]))
        wheel = fetch(wanted, folder, python)
        if wheel is None:
            continue
        with zipfile.ZipFile(wheel) as file:
            metadata = next(
                name for name in file.namelist() if name.endswith(".dist-info/METADATA")
            )
            lines = file.read(metadata).decode().splitlines()
        for line in (
            line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")
        ):
            need = Requirement(line)
            name = plain(need.name)
            here = need.marker is None or need.marker.evaluate(
                {**MACHINE, "python_version": python}
            )
            if here and name not in seen and not NOT_NEEDED.match(name):
                seen.add(name)
                waiting.append(f"{need.name}{need.specifier}")


def cut(wheel: Path, size: int) -> None:
    """Replace a wheel that is larger than `size` bytes by pieces, and a file with their number."""
    data = wheel.read_bytes()
    if len(data) <= size:
        return
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    for number, piece in enumerate(pieces):
        wheel.with_name(f"{wheel.name}.{number:02}").write_bytes(piece)
    wheel.with_name(f"{wheel.name}.count").write_text(str(len(pieces)))
    wheel.unlink()


def deal(folder: Path, size: int) -> list[int]:
    """Move a folder's files into numbered subfolders of at most `size` bytes; return the sizes."""
    used: list[int] = []
    for path in sorted(
        (x for x in folder.iterdir() if x.is_file()), key=lambda x: x.stat().st_size, reverse=True
    ):
        own = path.stat().st_size
        number = next((n for n, held in enumerate(used) if held + own <= size), len(used))
        if number == len(used):
            used.append(0)
            (folder / str(number + 1)).mkdir(exist_ok=True)
        used[number] += own
        path.rename(folder / str(number + 1) / path.name)
    return used


if __name__ == "__main__":
    main()
