"""Programs that try to get out, to read or write what is not theirs, to exhaust the machine, or to
cheat.
"""

NETWORK = [
    "import socket; socket.create_connection(('127.0.0.1', PORT))",
    "import socket; socket.socket(socket.AF_UNIX)",
    "import socket; socket.socketpair()",
    (
        "import socket; socket.getaddrinfo('localhost', 80); socket.socket(socket.AF_INET, "
        "socket.SOCK_DGRAM)"
    ),
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT/')",
    "import http.client; http.client.HTTPConnection('127.0.0.1', PORT).request('GET', '/')",
    "import asyncio; asyncio.run(asyncio.open_connection('127.0.0.1', PORT))",
    "import ctypes; fd = ctypes.CDLL(None).socket(2, 1, 0); assert fd >= 0",
]
FILES = [
    "open('TARGET', 'w').write('gone')",
    "open('TARGET', 'a').write('gone')",
    "open('SECRET').read()",
    "import os; os.remove('TARGET')",
    "import os; os.rename('TARGET', 'TARGET2')",
    "import os; os.chmod('TARGET', 0)",
    "import os; os.symlink('SECRET', '/tmp/link'); open('/tmp/link').read()",
    "import os; os.link('SECRET', '/tmp/link')",
    "import shutil; shutil.rmtree('FOLDER'); assert False",
    "import os; open(os.path.join('..', '..', '..', '..', *'SECRET'.split('/'))).read()",
    "import os; os.chroot('..'); open('SECRET').read()",
    (
        "import os\n"
        "os.mkdir('d')\n"
        "os.chroot('d')\n"
        "for _ in range(50): os.chdir('..')\n"
        "os.chroot('.')\n"
        "open('SECRET').read()"
    ),
    "open('/proc/self/environ').read()",
    "open('/proc/1/root' + 'SECRET').read()",
    "open('/etc/passwd').read()",
    "import os, sys; open(os.__file__, 'w')",
    (
        "import ctypes; libc = ctypes.CDLL(None); assert libc.mount(b'/', "
        "b'/tmp', None, 4096, None) == 0"
    ),
    "import ctypes; libc = ctypes.CDLL(None); assert libc.umount2(b'/usr/lib', 2) == 0",
    (
        "import os\n"
        "for fd in range(3, 200):\n"
        "    try: os.fchdir(fd); open('SECRET').read(); break\n"
        "    except OSError: pass\n"
        "else: raise OSError"
    ),
    "import glob; [open(path).read() for path in glob.glob('FOLDER/*')][0]",
]
PROCESSES = [
    "import os\nwhile True: os.fork()",
    "import os; os.forkpty()",
    "import os; os.posix_spawn('/bin/sh', ['sh', '-c', 'touch TARGET2'], {})",
    "import subprocess; subprocess.run(['touch', 'TARGET2'], check=True)",
    "import os; assert os.system('touch TARGET2') == 0",
    "import os; os.execv('/bin/sh', ['sh', '-c', 'touch TARGET2'])",
    "import os, sys; os.execv(sys.executable, [sys.executable, '-c', '1'])",
    "import multiprocessing; multiprocessing.get_context('fork').Process(target=print).start()",
    (
        "from concurrent.futures import ProcessPoolExecutor as P\n"
        "with P() as pool: pool.submit(print).result()"
    ),
    "import ctypes; assert ctypes.CDLL(None).fork() >= 0",
    "import ctypes; assert ctypes.CDLL(None).vfork() >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(435, 0, 0) >= 0",
    "import os; os.kill(PARENT, 9)",
    "import os; os.kill(-1, 9); raise SystemExit",
    "import os; os.killpg(os.getpgid(PARENT), 9)",
    "import os, signal; os.kill(os.getppid(), signal.SIGKILL); assert False",
    "import ctypes; assert ctypes.CDLL(None).ptrace(16, PARENT, 0, 0) == 0",
    "import os; os.setsid()",
    "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    (
        "import signal\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "while True: pass"
    ),
]
HUNGRY = [
    "while True: pass",
    "import time; time.sleep(6000)",
    "x = 10 ** 10 ** 10",
    "x = [0] * 10 ** 10",
    "x = bytearray(4 * 10 ** 9)",
    "x = 'a'\nwhile True: x += x",
    "def f(): f()\nimport sys; sys.setrecursionlimit(10 ** 9); f()",
    (
        "import threading\n"
        "while True: threading.Thread(target=lambda: threading.Event().wait()).start()"
    ),
    "while True: print('a' * 10 ** 6)",
    "import os\nfor i in range(10 ** 6): open(f'/tmp/{i}', 'w')",
    "with open('/tmp/big', 'wb') as file:\n    while True: file.write(bytes(10 ** 6))",
    "import os\nwhile True: os.write(1, bytes(10 ** 6)); os.open('/tmp', 0)",
    "import re; re.match('(a*)*b', 'a' * 50)",
    "import mmap; m = [mmap.mmap(-1, 10 ** 9) for _ in range(100)]",
    "import os; os.memfd_create('x')",
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); x = bytearray(4 * 10 ** 9)",
]
CHEATS = [
    "import os; os._exit(0)",
    "raise SystemExit(0)",
    "import sys; sys.exit()",
    "class Yes:\n    def __eq__(self, other): return True\ndef double(x): return Yes()",
    (
        "class Yes(int):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = int.__hash__\n"
        "    def __repr__(self): return 'Yes'\n"
        "double = Yes"
    ),
    (
        "import builtins; builtins.repr = lambda x: '4'; builtins.bool = lambda x: True\n"
        "def double(x): return 5"
    ),
    (
        "import sys\n"
        "while True:\n"
        "    print(repr(sys._getframe().f_back.f_locals))\n"
        "    raise SystemExit"
    ),
    (
        "import os, json\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, json.dumps({'values': ['True', 'True'], 'printed': '', 'error': "
        "''}).encode())\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    (
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, b'{' * 10 ** 6)\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "().__class__.__base__.__subclasses__()[0].__init__.__globals__",
    (
        "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "
        "'Popen'][0](['touch', 'TARGET2'])"
    ),
    (
        "def double(x):\n"
        "    import gc\n"
        "    return next(o for o in gc.get_objects() if isinstance(o, list) and 4 in o)"
    ),
    "__import__('atexit').register(print, 'x')\ndef double(x): raise BaseException",
]
SURVIVORS = [
    (
        "import ctypes, os; libc = ctypes.CDLL(None); libc.prctl(1, 0); os.kill(0, 9)\n"
        "while True: pass"
    ),
    (
        "import ctypes, os, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); os.kill(os.getppid(), "
        "9); time.sleep(100)"
    ),
    "import os\nfor pid in range(1, 40):\n    try: os.kill(pid, 9)\n    except OSError: pass",
    (
        "import os, signal\n"
        "for pid in range(1, 40):\n"
        "    try: os.kill(pid, signal.SIGSTOP)\n"
        "    except OSError: pass\n"
        "while True: pass"
    ),
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "for pid in range(1, 40): libc.syscall(234, pid, pid, 9)"
    ),
    "import ctypes\nlibc = ctypes.CDLL(None)\nfor pid in range(1, 40): libc.syscall(200, pid, 9)",
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "for pid in range(1, 40):\n"
        "    fd = libc.syscall(434, pid, 0)\n"
        "    libc.syscall(424, fd, 9, 0, 0)"
    ),
    (
        "import os, fcntl\n"
        "r, w = os.pipe()\n"
        "fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid()); fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC); "
        "os.write(w, b'x')"
    ),
    "import ctypes; assert ctypes.CDLL(None).syscall(56, 0x11, 0, 0, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(56, 0x11200, 0, 0, 0, 0) >= 0",
    "import ctypes; libc = ctypes.CDLL(None); libc.syscall(157, 36, 1, 0, 0, 0); libc.daemon(0, 0)",
    "import os; os.setpgid(0, 0)",
    "import os; os.nice(-20)",
    "import os; os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "import os; os.sched_setaffinity(os.getppid(), {0}); assert False",
    "import resource, os; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    (
        "import threading\n"
        "threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()\n"
        "raise SystemExit"
    ),
    "import threading, os\nfor fd in (0, 1, 2): os.close(fd)\nwhile True: pass",
    "import os\nos.closerange(0, 64)\nwhile True: pass",
    "import atexit\n@atexit.register\ndef forever():\n    while True: pass\nraise SystemExit",
    "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    "import signal, os\nsignal.alarm(1); signal.pause(); os.fork()",
]
KERNEL = [
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "assert all(libc.semget(0, 32000, 0o1600) >= 0 for _ in range(250))"
    ),
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "assert all(libc.msgget(0, 0o1600) >= 0 for _ in range(250))"
    ),
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "assert all(libc.shmget(0, 1 << 20, 0o1600) >= 0 for _ in range(250))"
    ),
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.syscall(240, b'queue', 0o102, 0o600, None) >= 0"
    ),
    (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "assert not any(libc.fallocate(fd, 1, 0, ctypes.c_long(1 << 30)) == 0 for fd in "
        "range(64)), 'allocated'\n"
        "assert False"
    ),
    "import os; os.posix_fallocate(3, 0, 1 << 30)",
    "import ctypes; assert ctypes.CDLL(None).syscall(249, b'user', b'a', b'b', 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(248, b'user', b'a', b'b', 1, -3) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(250, 0, -3) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(321, 0, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(425, 8, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(298, 0, 0, 0, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(323, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(253) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(300, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(149, 0, 4096) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(319, b'x', 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(447, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(310, 1, 0, 0, 0, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(317, 1, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(135, 0x0040000) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(304, -100, 0, 0) >= 0",
    "import ctypes; assert ctypes.CDLL(None).syscall(0x40000000 + 39) >= 0",
    "import os; os.mkfifo('/tmp/fifo')",
    "import os; os.mknod('/tmp/device', 0o20600, os.makedev(1, 1))",
    "import fcntl, os\nfcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "import os; os.setxattr('/tmp', 'user.a', b'b' * 60000)",
    "import socket\npairs = [socket.socketpair() for _ in range(1000)]",
    "import socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])",
    "import socket; socket.socketpair()[0].connect('/tmp/x')",
    "import socket\na, b = socket.socketpair()\na.bind('/tmp/s')",
    "import os\nfor i in range(10 ** 7): os.symlink('x' * 4000, f'/tmp/{i}')",
    "import os\npath = '/tmp'\nfor i in range(10 ** 6):\n    os.mkdir('d'); os.chdir('d')",
    (
        "import os, mmap\n"
        "fd = os.open('/tmp/a', os.O_RDWR | os.O_CREAT); os.ftruncate(fd, 1 << 24)\n"
        "for _ in range(10 ** 6): mmap.mmap(fd, 1 << 24).write(b'x' * (1 << 24))"
    ),
    "import os\ne = [__import__('select').epoll() for _ in range(10 ** 5)]",
]
SECRETS = [
    (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None)\n"
        "environ = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, 'environ')\n"
        "i = 0\n"
        "while environ[i]: print(environ[i]); i += 1\n"
        "assert i > 20"
    ),
    (
        "import ctypes\n"
        "libc = ctypes.CDLL(None)\n"
        "address = ctypes.addressof(ctypes.c_char_p.in_dll(libc, '__progname'))\n"
        "print(ctypes.string_at(ctypes.c_char_p.in_dll(libc, '__progname'), 4096))"
    ),
    "import os; print({k: v for k, v in os.environ.items() if 'TOKEN' in k}['TRAINER_TOKEN'])",
    (
        "for pid in range(1, 100):\n"
        "    try: print(open(f'/proc/{pid}/environ').read())\n"
        "    except OSError: pass"
    ),
    "open('/proc/1/mem', 'r+b').write(b'x')",
    "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
    "open('/proc/sysrq-trigger', 'w').write('b')",
    "open('/sys/fs/cgroup/memory/cgroup.procs').read()",
    "import os; os.listdir('/proc/self/fd')",
    "open('/etc/shadow').read()",
    "open('/dev/mem', 'rb').read(1)",
    "open('/dev/tty', 'w').write('x')",
    "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "import os; os.listdir(os.path.expanduser('~/.ssh')); os.listdir('/home')",
    (
        "import os\n"
        "for fd in range(64):\n"
        "    try: assert b'== 4' not in os.pread(fd, 10 ** 6, 0)\n"
        "    except OSError: pass\n"
        "assert False"
    ),
    "import torch",
    (
        "import os, importlib.util\n"
        "print(open('/inside/__main__.py').read())\n"
        "open('/inside/__main__.py', 'w')"
    ),
    "import os; os.rename('/inside', '/tmp/inside')",
    (
        "import os; os.remove('/tmp/stdin'); os.symlink('SECRET', '/tmp/stdin'); "
        "print(open('/tmp/stdin').read())"
    ),
]
FORGERIES = [
    (
        "import os, json\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, json.dumps({'refused': 'set isolation: none'}).encode())\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    (
        "import os, json\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, json.dumps({'status': 0, 'length': 4}).encode() + b'\\n4\\n4\\n')\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, b'True\\n1\\n' * 1000)\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, b'bwrap: No permissions\\n' * 1000)\n"
        "    except OSError: pass\n"
        "os._exit(1)"
    ),
    (
        "import os\n"
        "for fd in range(64):\n"
        "    try: os.write(fd, bytes(range(256)) * 40)\n"
        "    except OSError: pass"
    ),
    "def double(x): return list(range(10 ** 7))",
    "def double(x): return '(' * 10 ** 7",
    "def double(x):\n    a = []\n    for _ in range(10 ** 6): a = [a]\n    return a",
    "def double(x):\n    a = []; a.append(a)\n    return a",
    "def double(x): return {i * (2 ** 61 - 1): i for i in range(10 ** 5)}",
    "def double(x): return 10 ** 10 ** 6",
    "def double(x): return range(10 ** 18)",
    "def double(x): return float('nan')",
    (
        "class Yes(str):\n"
        "    def __eq__(self, other): return True\n"
        "    __hash__ = str.__hash__\n"
        "def double(x): return Yes('4')"
    ),
    "class Yes(list):\n    def __eq__(self, other): return True\ndef double(x): return Yes()",
    (
        "class Yes:\n"
        "    def __eq__(self, other): return True\n"
        "    def __bool__(self): return True\n"
        "    def as_integer_ratio(self): raise OverflowError\n"
        "    def __gt__(self, other): return True\n"
        "def double(x): return Yes()"
    ),
    (
        "class Yes:\n"
        "    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "    def __getattr__(self, name): return self\n"
        "    def __call__(self, *a, **k): return self\n"
        "double = Yes()"
    ),
    (
        "import sys; sys.modules['canonical'].canonical = lambda *a: '4'\n"
        "def double(x): return 5\n"
        "raise MemoryError"
    ),
    (
        "import builtins, sys; sys.exit = lambda *a: None\n"
        "builtins.eval = lambda *a: 5\n"
        "builtins.exec = lambda *a: None"
    ),
    "def double(x):\n    import os; os._exit(0)",
    "def double(x):\n    import os; os.abort()",
    "def double(x):\n    raise SystemExit(0)",
    "def double(x):\n    while True: pass",
    "def double(x):\n    raise KeyboardInterrupt",
    "def double(x):\n    import ctypes; ctypes.string_at(0)",
    "raise BaseException('\\x1b[2J' * 10 ** 5)",
    "import sys; sys.excepthook = lambda *a: 1 / 0; raise ValueError('\\n' * 10 ** 6)",
    "import sys; sys.settrace(lambda *a: sys.exit()); x = 1",
    "\x00",
    "def double(x): return '\\udc80' * 10",
]
