"""What may lie in a folder that somebody else has written, in place of a plain file.

And limits for those who read it.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import resource
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLAG = "code-has-run"  # a file that code of a folder would leave
SECRET = "only for the reader"
MEMORY = 768 * 2**20  # more address space than at the start of a reader
CPU = 120  # seconds of a processor, a hundred times what a reader needs
ENDLESS = 2**40  # bytes of a file that takes no disk


class RunsCode:
    """Unpickled, it leaves the file."""

    def __init__(self, flag: Path):
        self.flag = flag

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.flag), "w")


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def device(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/tty")


def bound_socket(path: Path, secret: Path) -> None:
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)  # the path of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def folder(path: Path, secret: Path) -> None:
    path.mkdir()


def link_out(path: Path, secret: Path) -> None:
    path.symlink_to(secret / path.name)


def relative_link_out(path: Path, secret: Path) -> None:
    path.symlink_to(os.path.relpath(secret / path.name, path.parent))


def link_through_a_folder(path: Path, secret: Path) -> None:
    door = path.with_name(f"door to {path.name}")
    door.symlink_to(secret)
    path.symlink_to(f"{door.name}/{path.name}")


def open_file(path: Path, secret: Path) -> None:
    path.symlink_to("/proc/self/environ")


def nothing(path: Path, secret: Path) -> None:
    path.symlink_to("nothing")


def circle(path: Path, secret: Path) -> None:
    path.symlink_to(path.name)


def endless_line(path: Path, secret: Path) -> None:
    path.touch()
    os.truncate(path, ENDLESS)


def long_line(path: Path, secret: Path) -> None:
    path.write_bytes(b'{"step": 1, "x": "' + b"x" * 40 * 2**20)


def no_text(path: Path, secret: Path) -> None:
    path.write_bytes(b'\xff\xfe{"step": 1}\n\x80\n')


def deep(path: Path, secret: Path) -> None:
    path.write_text("[" * 200_000 + "\n")


def deep_mapping(path: Path, secret: Path) -> None:
    path.write_text('{"step": ' * 100_000 + "\n")


def huge_numbers(path: Path, secret: Path) -> None:
    path.write_text(f'{{"step": {"9" * 5000}, "reward": 1e999, "x": -{"9" * 4000}}}\n')


def slow_number(path: Path, secret: Path) -> None:
    path.write_text("1" + ":59" * 80_000 + "\n")  # for YAML a number to the base 60


def markup(path: Path, secret: Path) -> None:
    path.write_text('!<\x1b[31m> </script>{"step": \x07"<img src=x onerror=alert(1)>"}\n')


def escaped_tag(path: Path, secret: Path) -> None:
    path.write_text("a: !%1b[31m b\n")


def no_content(path: Path, secret: Path) -> None:
    path.touch()


def blank_lines(path: Path, secret: Path) -> None:
    path.write_bytes(b"\n" * 4 * 2**20)


def zero_bytes(path: Path, secret: Path) -> None:
    path.write_bytes(bytes(20 * 2**20))


def wide_text(path: Path, secret: Path) -> None:
    path.write_text('{"step": 1}\n', encoding="utf-16")


def no_numbers(path: Path, secret: Path) -> None:
    path.write_text('{"step": 1, "step": NaN, "step": -Infinity, "reward": Infinity, "": {}}\n')


@functools.cache
def archive_of_zeros(mebibytes: int) -> bytes:
    """A thousandth of the bytes that it unpacks to; packing it takes seconds."""
    archive = io.BytesIO()
    with (
        zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file,
        file.open("archive/data.pkl", "w", force_zip64=True) as part,
    ):
        for _ in range(mebibytes):
            part.write(bytes(2**20))
    return archive.getvalue()


def packed_zeros(path: Path, secret: Path) -> None:
    path.write_bytes(archive_of_zeros(1024))


def pickled_call(path: Path, secret: Path) -> None:
    path.write_bytes(pickle.dumps(RunsCode(path.with_name(FLAG))))


def repeated_aliases(path: Path, secret: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    path.write_text("\n".join(lines) + "\n")


def python_tag(path: Path, secret: Path) -> None:
    path.write_text(f"a: !!python/object/apply:builtins.open [{path.with_name(FLAG)}, w]\n")


def control_name(path: Path, secret: Path) -> None:
    odd = path.with_name("..\x1b[31m\n\u202e\x07")
    odd.write_text("text")
    path.symlink_to(odd.name)


def deep_folders(path: Path, secret: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    for name in [path.name, *["d" * 200] * 50]:  # longer than a path may be
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def folder_with_itself(path: Path, secret: Path) -> None:
    path.mkdir()
    (path / "again").symlink_to("..")


def chain_of_links(path: Path, secret: Path) -> None:
    for number in range(60):  # more than the kernel follows
        path.with_name(f"{path.name}-{number}").symlink_to(f"{path.name}-{number + 1}")
    path.symlink_to(f"{path.name}-0")


def hard_link(path: Path, secret: Path) -> None:
    """The kernel makes none to a file that the maker could not write anyway."""
    harmless = path.with_name(f"harmless {path.name}")
    harmless.write_text("a: 1\n")
    os.link(harmless, path)


def closed(path: Path, secret: Path) -> None:
    path.write_text("a: 1\n")
    path.chmod(0)  # nothing to root


def many_names(path: Path, secret: Path) -> None:
    path.write_text("".join(f'{{"step": 1, "k{n}": {n}}}\n' for n in range(20_000)))


def crowd(path: Path, secret: Path) -> None:
    """More entries than a folder may have, beside the file."""
    path.write_text("a: 1\n")
    for number in range(100_001):
        os.mknod(path.with_name(f"{number}"))


KINDS: list[Callable[[Path, Path], None]] = [
    fifo,
    device,
    terminal,
    bound_socket,
    folder,
    link_out,
    relative_link_out,
    link_through_a_folder,
    open_file,
    nothing,
    circle,
    endless_line,
    long_line,
    no_text,
    deep,
    deep_mapping,
    huge_numbers,
    slow_number,
    markup,
    escaped_tag,
    no_content,
    blank_lines,
    zero_bytes,
    wide_text,
    no_numbers,
    packed_zeros,
    pickled_call,
    repeated_aliases,
    python_tag,
    control_name,
    deep_folders,
    folder_with_itself,
    chain_of_links,
    hard_link,
    closed,
    many_names,
]


def limit_this_process() -> None:
    """End this process, with an error, once it takes much memory or time of a processor."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
