"""Safely read files written by others: copied or shared runs, data folders and checkpoints.

Such a folder can contain anything: a FIFO that blocks its reader, an endless device, a link to one
of the reader's own files, a single line of many gigabytes. The functions here open only regular
files, never block, and read a bounded number of bytes at a time. If the folder is given as
`within`, they follow no link out of it, except into the hub's cache. `tests/test_house.py` checks
that such files are not opened in any other way.
"""

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 16 * 2**20  # maximum size of a file that is read as a whole
MOST_LINE = 16 * 2**20  # maximum bytes in a line of a log
MOST_ENTRIES = 100_000  # maximum number of entries in a folder
MOST_LEVELS = 100  # maximum nesting depth of YAML and of rows of data
MOST_HOLES = 2**30  # maximum bytes of holes: ranges that use no disk space and read as zeros
CACHED_REPOS = ("models--", "datasets--")  # prefixes of the folders in the hub's cache


class ForeignFile(OSError):
    """Raised if a file is not regular, is too large or sparse, or is a link out of its folder.

    Also raised if a line is too long, or a folder has too many entries.
    """


def open_plain(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading bytes, without blocking.

    Args:
        path: the file, or a link to it.
        within: the folder that must contain the file after all links are resolved. Links into the
            hub's cache are allowed too, because `huggingface_hub` makes folders of such links.
            If `None`, links may point anywhere; use this only for files that the user named.

    Raises:
        ForeignFile: if the file is a FIFO, a device, a socket or a folder, is outside `within`, or
            is sparse (see `is_sparse`). A sparse file takes little disk space, but can take very
            long to read.
        OSError: if the file does not exist or cannot be read.
    """
    real = Path(os.path.realpath(path, strict=True))
    number = _descriptor(path, real, within, os.O_RDONLY)
    if is_sparse(number):
        os.close(number)
        raise ForeignFile(
            errno.EFBIG,
            "a sparse file, probably an incomplete copy: more than half of it (over "
            f"{MOST_HOLES:,} bytes) was never written. Copy it again",
            str(path),
        )
    return open(number, "rb")


def is_sparse(number: int) -> bool:
    """Return whether more than half of an open file, and over `MOST_HOLES` bytes, are holes.

    Returns `False` on file systems that do not report holes.

    Args:
        number: the file descriptor, positioned at the start of the file, where it is left.
    """
    size = os.fstat(number).st_size
    if size <= MOST_HOLES:
        return False
    enough = min(size - MOST_HOLES, size / 2)  # with this many bytes of data, it is not sparse
    data = 0
    place = 0
    try:
        while place < size and data < enough:
            begin = os.lseek(number, place, os.SEEK_DATA)
            place = os.lseek(number, begin, os.SEEK_HOLE)
            data += place - begin
    except OSError as error:
        if error.errno != errno.ENXIO:  # ENXIO: no more data
            return False
    finally:
        os.lseek(number, 0, os.SEEK_SET)
    return data < enough


def append_plain(path: Path, within: Path) -> FileIO:
    """Open or create a regular file in the folder `within`, to append bytes without buffering.

    Raises:
        ForeignFile: if the file is a FIFO, a device, a socket or a folder, or a link that points
            neither into `within` nor into the hub's cache.
        OSError: if the folder does not exist or the file cannot be opened.
    """
    real = Path(os.path.realpath(path))
    number = _descriptor(path, real, within, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    return FileIO(number, "ab")


def _descriptor(path: Path, real: Path, within: Path | None, flags: int) -> int:
    """Open a regular file and return its descriptor.

    Args:
        path: the path to name in errors.
        real: the same path with all links resolved.
        within: the folder that must contain the file, unless it is in the hub's cache; `None`
            allows any folder.
        flags: the flags for `os.open`; those that prevent blocking and following links are added.

    Raises:
        ForeignFile: if the file is not regular, or is outside `within`.
        OSError: if the file cannot be opened.
    """
    root = None
    if within is not None:
        root = Path(os.path.realpath(within, strict=True))
    if not _is_in(root, real):
        raise _link_out(path)
    if os.path.lexists(real) and not stat.S_ISREG(os.lstat(real).st_mode):
        raise _not_plain(path)  # before opening it, because opening some devices has side effects
    flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    number = os.open(real, flags, 0o666)
    try:  # check again, because the path may have been replaced since
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise _not_plain(path)
        if not _is_in(root, _opened(number, real)):
            raise _link_out(path)
    except BaseException:
        os.close(number)
        raise
    return number


def read_bytes(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> bytes:
    """Return the content of a file.

    Args:
        path: the file, or a link to it.
        most: the maximum size in bytes.
        within: the folder that must contain the file after all links are resolved, unless it is in
            the hub's cache. If `None`, links may point anywhere.

    Raises:
        ForeignFile: if the file is larger than `most`, is sparse, is not a regular file, or is
            outside `within`.
        OSError: if the file does not exist or cannot be read.
    """
    with open_plain(path, within) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ForeignFile(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    return content


def read_text(path: Path, most: int = MOST_BYTES, within: Path | None = None) -> str:
    """Return the content of a UTF-8 file as a string.

    Args:
        path: the file, or a link to it.
        most: the maximum size in bytes.
        within: the folder that must contain the file after all links are resolved, unless it is in
            the hub's cache. If `None`, links may point anywhere.

    Raises:
        ForeignFile: if the file is larger than `most`, is sparse, is not a regular file, or is
            outside `within`.
        OSError: if the file does not exist or cannot be read.
        UnicodeDecodeError: if the file is not UTF-8.
    """
    return read_bytes(path, most, within).decode()


def lines_of(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines from the file's current position to its current end.

    Lines that are appended meanwhile are not read. The last line may lack its line break.

    Args:
        file: the open file.
        path: the path to name in errors.

    Raises:
        ForeignFile: if a line has more than `MOST_LINE` bytes.
    """
    left = os.fstat(file.fileno()).st_size - file.tell()
    while left > 0:
        line = file.readline(min(left, MOST_LINE + 1))
        if len(line) > MOST_LINE:
            raise ForeignFile(errno.EFBIG, f"a line has more than {MOST_LINE:,} bytes", str(path))
        if not line:  # the file was truncated meanwhile
            return
        left -= len(line)
        yield line


def entries(folder: Path) -> list[Path]:
    """Return the paths of a folder's entries, sorted by name.

    Raises:
        ForeignFile: if there are more than `MOST_ENTRIES` entries.
        OSError: if the folder does not exist or cannot be read.
    """
    with os.scandir(folder) as listing:
        names = [entry.name for entry in islice(listing, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise ForeignFile(errno.E2BIG, f"more than {MOST_ENTRIES:,} entries", str(folder))
    return [folder / name for name in sorted(names)]


def size_of(path: Path, within: Path) -> int:
    """Return the size of a file in bytes; 0 if it is missing, not regular, or outside `within`.

    Links are resolved first. A file in the hub's cache does not count as outside.
    """
    try:
        real = Path(os.path.realpath(path, strict=True))
        about = os.lstat(real)
        inside = _is_in(Path(os.path.realpath(within)), real)
    except OSError:
        return 0
    return about.st_size if inside and stat.S_ISREG(about.st_mode) else 0


def leads_out(path: Path, within: Path) -> bool:
    """Return whether a path, with all links resolved, is outside `within` and the hub's cache."""
    root = Path(os.path.realpath(within))
    real = Path(os.path.realpath(path))
    return not _is_in(root, real)


def special_file(folder: Path) -> Path | None:
    """Return the first FIFO, device or socket in a folder, or `None` if there is none.

    Such a file could block a reader. Links are followed; subfolders are not searched.

    Raises:
        ForeignFile: if the folder has more than `MOST_ENTRIES` entries.
        OSError: if the folder does not exist or cannot be read.
    """
    for path in entries(folder):
        try:
            mode = os.stat(path).st_mode
        except OSError:  # a dangling link
            continue
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return path
    return None


def check_tree(folder: Path) -> None:
    """Check that a folder contains only regular files, subfolders and safe links.

    A link is safe if it points to a place within the folder or in the hub's cache. All subfolders
    are checked. Call this before passing the folder to a library that opens its files.

    Raises:
        ForeignFile: if the folder or a subfolder contains a FIFO, a device, a socket or an unsafe
            link, or if there are more than `MOST_ENTRIES` entries in all.
        OSError: if a folder does not exist or cannot be read.
    """
    waiting = [folder]
    num_entries = 0
    while waiting:
        for path in entries(waiting.pop()):
            num_entries += 1
            if num_entries > MOST_ENTRIES:
                raise ForeignFile(errno.E2BIG, f"more than {MOST_ENTRIES:,} entries", str(folder))
            if leads_out(path, folder):
                raise _link_out(path)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode):
                waiting.append(path)
            elif not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
                raise _not_plain(path)


def _is_in(root: Path | None, real: Path) -> bool:
    """Return whether a resolved path is in the folder `root` or in the hub's cache.

    A path counts as in the cache if it is directly in a folder `models--NAME/blobs` or
    `datasets--NAME/blobs`, wherever that folder is. The result is always true if `root` is `None`;
    otherwise, `root` must be resolved, too.
    """
    if root is None or real.is_relative_to(root):
        return True
    cache = real.parent
    return cache.name == "blobs" and cache.parent.name.startswith(CACHED_REPOS)


def _opened(number: int, path: Path) -> Path:
    """Return the actual path of an open file, or `path` on systems without `/proc`."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{number}"))
    except OSError:  # not on Linux
        return path


def _link_out(path: Path) -> ForeignFile:
    return ForeignFile(errno.EXDEV, "a link that points outside its folder", str(path))


def _not_plain(path: Path) -> ForeignFile:
    return ForeignFile(
        errno.EINVAL, "a FIFO, a device, a socket or a folder, not a plain file", str(path)
    )
