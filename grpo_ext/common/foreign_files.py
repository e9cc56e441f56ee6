"""Files from others: in run folders, data folders and checkpoints that were copied or shared.

Whoever wrote such a folder chooses what lies in it: a FIFO that blocks its reader, a device without
an end, a link to one of the reader's own files, one line of many gigabytes. The functions here open
only plain files, never block, follow no link out of the folder, and read a bounded number of bytes
at a time. `tests/test_house.py` keeps out other ways to open such files.
"""

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 16 * 2**20  # of a file that is read whole
MOST_LINE = 16 * 2**20  # bytes of a line of a log
MOST_ENTRIES = 100_000  # of a folder
MOST_LEVELS = 100  # of nesting in YAML and in rows of data
MOST_HOLES = 2**30  # bytes of a file that are on no disk and would be read as zeros
CACHED_REPOS = ("models--", "datasets--")  # how folders of the hub's cache begin


class ForeignFile(OSError):
    """A file or folder that is not plain, is too large, or is a link out of its folder."""


def open_plain(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a plain file for reading without blocking.

    Args:
        path: the file, or a link to it.
        within: the folder that the file must be in after all links are resolved. A link into the
            hub's cache is also allowed, because `huggingface_hub` makes folders of such links.
            `None`: the reader has named the file, and links may lead anywhere.

    Raises:
        ForeignFile: if it is a FIFO, a device, a socket or a folder, or outside `within`, or if
            nearly all of it is a hole, which takes no disk and an endless time to read.
        OSError: if it does not exist or cannot be read.
    """
    real = Path(os.path.realpath(path, strict=True))
    number = _descriptor(path, real, within, os.O_RDONLY)
    if is_hole(number):
        os.close(number)
        raise ForeignFile(
            errno.EFBIG,
            f"more than {MOST_HOLES:,} bytes of it, and more than half, are a hole: copy the file "
            "again",
            str(path),
        )
    return open(number, "rb")


def is_hole(number: int) -> bool:
    """Whether most of an open file, and more than `MOST_HOLES` bytes, are on no disk.

    A file system that does not tell holes has none.
    """
    size = os.fstat(number).st_size
    if size <= MOST_HOLES:
        return False
    data = 0
    place = 0
    try:
        while place < size and (data < size - MOST_HOLES and 2 * data < size):
            begin = os.lseek(number, place, os.SEEK_DATA)
            place = os.lseek(number, begin, os.SEEK_HOLE)
            data += place - begin
    except OSError as error:
        if error.errno != errno.ENXIO:  # no data after this place
            return False
    finally:
        os.lseek(number, 0, os.SEEK_SET)
    return data < size - MOST_HOLES and 2 * data < size


def append_plain(path: Path, within: Path) -> FileIO:
    """Open or create a plain file for appending without a buffer; errors as for `open_plain`."""
    real = Path(os.path.realpath(path))
    return FileIO(_descriptor(path, real, within, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def _descriptor(path: Path, real: Path, within: Path | None, flags: int) -> int:
    """Return a descriptor of the plain file at `path`, which resolves to `real`."""
    root = None if within is None else Path(os.path.realpath(within, strict=True))
    if not _is_in(root, real):
        raise _link_out(path)
    if os.path.lexists(real) and not stat.S_ISREG(os.lstat(real).st_mode):
        raise _not_plain(path)  # some devices act when they are opened
    flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    number = os.open(real, flags, 0o666)
    try:  # again, because the path may have been replaced since
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise _not_plain(path)
        if not _is_in(root, _opened(number, real)):
            raise _link_out(path)
    except BaseException:
        os.close(number)
        raise
    return number


def read_bytes(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> bytes:
    """Return the content of a file of at most `most` bytes.

    `OSError` as for `open_plain`, or if the file is larger.
    """
    with open_plain(path, within) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ForeignFile(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> str:
    """Return the UTF-8 text of `read_bytes`; `UnicodeDecodeError` if it is anything else."""
    return read_bytes(path, most, within).decode()


def lines_of(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines from the file's position to its present end, even while the file grows.

    The last one may lack its line end. `ForeignFile`, with the path, at a line of more than
    `MOST_LINE` bytes.
    """
    left = os.fstat(file.fileno()).st_size - file.tell()
    while left > 0:
        line = file.readline(min(left, MOST_LINE + 1))
        if len(line) > MOST_LINE:
            raise ForeignFile(errno.EFBIG, f"a line has more than {MOST_LINE:,} bytes", str(path))
        if not line:  # the file was cut meanwhile
            return
        left -= len(line)
        yield line


def entries(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder; `ForeignFile` if there are over `MOST_ENTRIES`."""
    with os.scandir(folder) as listing:
        names = [entry.name for entry in islice(listing, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise ForeignFile(errno.E2BIG, f"it has more than {MOST_ENTRIES:,} entries", str(folder))
    return [folder / name for name in sorted(names)]


def size_of(path: Path, within: Path) -> int:
    """Return the bytes of a plain file in a folder; 0 for anything else."""
    try:
        real = Path(os.path.realpath(path, strict=True))
        about = os.lstat(real)
        inside = _is_in(Path(os.path.realpath(within)), real)
    except OSError:
        return 0
    return about.st_size if inside and stat.S_ISREG(about.st_mode) else 0


def leads_out(path: Path, within: Path) -> bool:
    """Whether a file or folder is outside `within` after all links are resolved."""
    return not _is_in(Path(os.path.realpath(within)), Path(os.path.realpath(path)))


def special_file(folder: Path) -> Path | None:
    """Return a FIFO, device or socket in a folder, which could block a reader; `None` without."""
    for path in entries(folder):
        try:
            mode = os.stat(path).st_mode
        except OSError:  # a link to nothing
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return path
    return None


def check_tree(folder: Path) -> None:
    """Raise `ForeignFile` unless a folder has only plain files and no links out, at any depth.

    It is for libraries that open the files of a folder by themselves.
    """
    waiting = [folder]
    number = 0
    while waiting:
        for path in entries(waiting.pop()):
            number += 1
            if number > MOST_ENTRIES:
                raise ForeignFile(
                    errno.E2BIG, f"it has more than {MOST_ENTRIES:,} entries", str(folder)
                )
            if leads_out(path, folder):
                raise _link_out(path)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                waiting.append(path)
            elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise _not_plain(path)


def _is_in(root: Path | None, real: Path) -> bool:
    """Whether a resolved path is in the resolved folder `root`, or a file in the hub's cache."""
    if root is None or real.is_relative_to(root):
        return True
    cache = real.parent
    return cache.name == "blobs" and cache.parent.name.startswith(CACHED_REPOS)


def _opened(number: int, path: Path) -> Path:
    """Return the path of an open file, as far as the system tells it; else `path`."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:  # not on Linux
        return path


def _link_out(path: Path) -> ForeignFile:
    return ForeignFile(errno.EXDEV, "it is a link out of its folder", str(path))


def _not_plain(path: Path) -> ForeignFile:
    return ForeignFile(
        errno.EINVAL, "it is a FIFO, a device, a socket or a folder, not a plain file", str(path)
    )
