"""Confinement of the process of a submission: it reads its packages, and no other file, process or host.

Two layers: Landlock, by which Linux restricts a process of any user, and an audit hook, by which Python itself refuses
on every system. Stands alone, as the process of a submission loads it without the rest of the library.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator, Sequence

READ_FILE, READ_DIR = 1 << 2, 1 << 3
CREATE_RULESET, ADD_RULE, RESTRICT_SELF, NO_NEW_PRIVILEGES = 444, 445, 446, 38
SYSTEM = (  # libraries that are loaded, and what these read of the machine
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
    "/dev/urandom", "/sys/devices/system", "/sys/fs/cgroup", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
)  # fmt: skip


def landlock(readable: Sequence[str], listed: Sequence[str], hidden: Sequence[str], folder: str) -> bool:
    """Let this process and its children read some paths but for hidden ones, list others, and write to one folder.

    Programs cannot be started, nor connections made. A process outside can be neither traced nor sent a signal.

    Returns:
        Whether the system has Landlock.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None, use_errno=True)
    version = library.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attributes = struct.pack("<QQQ", rights, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = library.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    seen = [path for root in (*SYSTEM, *readable) for path in _visible(os.path.realpath(root), hidden)]
    rules_of = [*((path, READ_FILE | READ_DIR) for path in seen), *((path, READ_DIR) for path in listed)]
    for path, allowed in [*rules_of, (folder, rights & ~1)]:  # bit 0: to execute
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed &= ~0 if os.path.isdir(path) else READ_FILE
        library.syscall(ADD_RULE, rules, 1, struct.pack("<Qi", allowed, opened), 0)
        os.close(opened)
    library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = library.syscall(RESTRICT_SELF, rules, 0) == 0
    os.close(rules)
    return done


def _visible(root: str, hidden: Sequence[str]) -> Iterator[str]:
    """Paths that cover a folder but for what is hidden in it."""
    if root in hidden or not os.path.exists(root):
        return
    if not any(path.startswith(root + os.sep) for path in hidden):
        yield root
        return
    for entry in os.scandir(root):
        if not entry.is_symlink():
            yield from _visible(entry.path, hidden)


# All that is in it is a constant of its code, so that a submission finds nothing to change: it uses no name but a
# built-in exception, and methods of text by their own class. `object.__setattr__` would change the code itself.
HOOK = """
def hook(event, args):
    if event in {refused!r} or event == "import" and args[0] in {modules!r}:
        raise PermissionError("A submission runs without files, processes, network and foreign code. Received: "
                              + event + ". Compute the result from the arguments.")
    if event == "object.__setattr__" and args[1] == "__code__":
        raise PermissionError("A submission leaves the code of functions alone. Received: __code__. Write a function.")
    if event == "open" or event == "os.listdir" or event == "os.scandir":
        path = args[0]
        text = "".__class__
        if (text.__contains__(path, "..") or event == "open" and args[2] & {writing}
            or not text.startswith(path, {readable!r}) or text.startswith(path, {secret!r})
            or not text.startswith(path, {packages!r}) and text.__contains__(path, "-packages")):
            raise PermissionError("A submission opens no files. Received: " + event
                                  + ". Compute the result from the arguments.")
"""
REFUSED = (
    "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn", "os.startfile", "subprocess.Popen",
    "pty.spawn", "os.kill", "os.killpg", "signal.pthread_kill", "os.symlink", "os.link", "os.chdir", "os.rename",
    "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.truncate", "os.utime", "os.setxattr",
    "socket.__new__", "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "sqlite3.connect",
    "mmap.__new__", "ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function",
    "ctypes.string_at", "ctypes.cdata", "ctypes.cdata/buffer", "gc.get_objects", "gc.get_referrers",
)  # fmt: skip
MODULES = ("_ctypes", "_posixsubprocess", "_winapi", "_multiprocessing")  # by which the events above can be avoided
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def audit(readable: Sequence[str], packages: Sequence[str], secret: str) -> None:
    """Refuse from now on to open files elsewhere, to write any, and to start or reach others."""
    names: dict[str, object] = {}
    code = HOOK.format(
        refused=REFUSED,
        modules=MODULES,
        readable=(*readable, *packages),
        packages=tuple(packages),
        writing=WRITING,
        secret=secret,
    )
    exec(compile(code, "<confinement>", "exec"), names)
    sys.addaudithook(names["hook"])  # type: ignore[arg-type]


def limit_resources() -> None:
    """No core files, and no file of more than 64 MB."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
