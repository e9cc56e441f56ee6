"""The system calls that a sandbox may make, and a compiler that turns them into seccomp filters.

There are two filters. `start` is loaded by bubblewrap and lets Python start and fork. `program` is
loaded on top of it by each forked process before the model's program runs. It allows no new
processes, no signals to other processes, no System V or POSIX IPC, no sockets except connected
pairs, and only harmless commands of `ioctl`, `fcntl` and `prctl`. Calls that a filter does not
allow fail with ENOSYS ("not implemented"), which makes the C library fall back to older calls.

The command below compiles the filters to `data/NAME.ARCHITECTURE.bpf`. It requires libseccomp and
the Python binding `pyseccomp`. Training does not, because the package contains the compiled files.

    python -m grpo_ext.rewards.code.allowed_calls
"""

from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

DATA = Path(__file__).with_name("data")
ARCHITECTURES = ("x86_64", "aarch64")

FILES = """
    access chdir chmod close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fchdir fchmod fchmodat fdatasync flock fstat fstatfs fsync ftruncate getcwd getdents getdents64
    link linkat lseek lstat mkdir mkdirat newfstatat open openat pread64 preadv pwrite64 pwritev
    read readlink readlinkat readv rename renameat renameat2 rmdir sendfile stat statfs statx
    symlink symlinkat truncate umask unlink unlinkat utime utimensat utimes write writev
"""
MEMORY = "brk madvise membarrier mincore mmap mprotect mremap msync munmap"
THREADS = """
    arch_prctl exit exit_group futex gettid rseq sched_getaffinity sched_getparam sched_getscheduler
    sched_yield set_robust_list set_tid_address
"""
SIGNALS_OF_ITS_OWN = """
    alarm getitimer pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn
    rt_sigsuspend rt_sigtimedwait setitimer sigaltstack
"""
TIME = """
    clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time times
"""
WAITING = """
    epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 pipe pipe2 poll ppoll
    pselect6 select
"""
CONNECTED_SOCKETS = "recvfrom sendto shutdown getsockname getpeername getsockopt"
QUESTIONS = """
    getegid geteuid getgid getgroups getpgrp getpid getppid getrandom getresgid getresuid getrlimit
    getrusage getsid getuid setrlimit sysinfo uname
"""

# The calls that bubblewrap's first process and the harness need to start Python, fork, wait, and
# load the second filter.
STARTING = """
    clone execve fcntl fork ioctl kill prctl prlimit64 seccomp socketpair vfork wait4 waitid
"""
PROGRAM_CALLS = " ".join(
    (FILES, MEMORY, THREADS, SIGNALS_OF_ITS_OWN, TIME, WAITING, CONNECTED_SOCKETS, QUESTIONS)
).split()
START_CALLS = [*PROGRAM_CALLS, *STARTING.split()]

CLONE_THREAD = 0x00010000
AF_UNIX = 1
FCNTL_COMMANDS = {
    "F_DUPFD": 0,
    "F_GETFD": 1,
    "F_SETFD": 2,
    "F_GETFL": 3,
    "F_SETFL": 4,
    "F_GETLK": 5,
    "F_SETLK": 6,
    "F_SETLKW": 7,
    "F_DUPFD_CLOEXEC": 1030,
    "F_GETPIPE_SZ": 1032,
}
IOCTL_COMMANDS = {
    "TCGETS": 0x5401,
    "TIOCGWINSZ": 0x5413,
    "FIONREAD": 0x541B,
    "FIONBIO": 0x5421,
    "FIONCLEX": 0x5450,
    "FIOCLEX": 0x5451,
}
PRCTL_COMMANDS = {"PR_SET_NAME": 15, "PR_GET_NAME": 16}


def compiled_filter(name: str, architecture: str) -> bytes:
    """Compile a filter into the kernel's classic BPF instructions and return them.

    Args:
        name: the filter, `start` or `program`.
        architecture: one of `ARCHITECTURES`.

    Raises:
        ImportError, RuntimeError: if `pyseccomp` or libseccomp is missing.
    """
    import errno

    import pyseccomp as seccomp

    arch = {"x86_64": seccomp.Arch.X86_64, "aarch64": seccomp.Arch.AARCH64}[architecture]
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.ENOSYS))
    native = seccomp.system_arch()
    if native != arch:
        rules.add_arch(arch)
        rules.remove_arch(native)

    def allow(call: str, *conditions: Any) -> None:
        try:
            rules.add_rule(seccomp.ALLOW, call, *conditions)
        except OSError as error:
            if error.errno != errno.EDOM:  # this architecture does not have the call
                raise

    for call in START_CALLS if name == "start" else PROGRAM_CALLS:
        allow(call)
    if name == "program":
        allow("clone", seccomp.Arg(0, seccomp.MASKED_EQ, CLONE_THREAD, CLONE_THREAD))
        allow("socketpair", seccomp.Arg(0, seccomp.EQ, AF_UNIX))
        allow("prlimit64", seccomp.Arg(0, seccomp.EQ, 0))
        commands = {
            ("fcntl", 1): FCNTL_COMMANDS,
            ("ioctl", 1): IOCTL_COMMANDS,
            ("prctl", 0): PRCTL_COMMANDS,
        }
        for (call, position), numbers in commands.items():
            for number in numbers.values():
                allow(call, seccomp.Arg(position, seccomp.EQ, number))
    with TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def read_filter(name: str, architecture: str) -> bytes:
    """Return a compiled filter from the package's data.

    Args:
        name: the filter, `start` or `program`.
        architecture: the machine's architecture, such as `x86_64`.

    Raises:
        FileNotFoundError: if there is no filter for the architecture.
    """
    return (DATA / f"{name}.{architecture}.bpf").read_bytes()


def main() -> None:
    for architecture in ARCHITECTURES:
        for name in ("start", "program"):
            path = DATA / f"{name}.{architecture}.bpf"
            path.write_bytes(compiled_filter(name, architecture))


if __name__ == "__main__":
    main()
