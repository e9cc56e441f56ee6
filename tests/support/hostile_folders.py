"""What may lie in a folder that somebody else has written, in place of a plain file; and limits for those who read it."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

SECRET = "only for the reader"
MEMORY = 768 * 2**20  # more address space than at the start of a reader
CPU = 120  # seconds of a processor, a hundred times what a reader needs
ENDLESS = 2**40  # bytes of a file that takes no disk


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


KINDS: list[Callable[[Path, Path], None]] = [
    fifo, device, terminal, bound_socket, folder, link_out, relative_link_out, link_through_a_folder, open_file, nothing,
    circle, endless_line, long_line, no_text, deep, deep_mapping, huge_numbers, slow_number, markup, escaped_tag,
]  # fmt: skip


def limit_this_process() -> None:
    """End this process, with an error, once it takes much memory or time of a processor."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
