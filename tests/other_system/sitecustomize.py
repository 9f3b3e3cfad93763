"""Put this directory on PYTHONPATH and Python starts as on a system that is not Linux, without the native part.

What POSIX or Linux alone has is taken away: modules, functions, constants, signal handlers of the event loop, /proc and
/sys. Processes that are started inherit it.
"""

import asyncio
import importlib.abc
import mmap
import os
import pathlib
import signal
import sys

_MODULES = {"fcntl", "grp", "pwd", "readline", "resource", "termios", "tty", "uvloop", "ridgeline._native"}
_OS = (
    "fchmod", "fork", "getloadavg", "getpgid", "getpriority", "getuid", "geteuid", "killpg", "link", "mkfifo", "nice",
    "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev", "sched_getaffinity", "sched_getparam",
    "sched_getscheduler", "sched_setaffinity", "sched_setscheduler", "sched_yield", "setpriority", "sysconf",
    "O_DIRECT", "O_NOFOLLOW", "SCHED_RR",
)  # fmt: skip
_SIGNALS = ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT", "SIGALRM", "SIGPIPE", "pthread_sigmask")
_MMAP = ("MAP_PRIVATE", "MAP_SHARED", "MAP_POPULATE", "PROT_READ", "PROT_WRITE")
_LINUX_ROOTS = ("/proc", "/sys")


class _Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in _MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _no_signal_handlers(self, *_):
    raise NotImplementedError


def _without_linux_roots(method):
    def asked(path, *arguments, **options):
        if path.as_posix().startswith(_LINUX_ROOTS):
            path = pathlib.Path("/nowhere", *path.parts[1:])
        return method(path, *arguments, **options)

    return asked


def _take_away():
    sys.meta_path.insert(0, _Missing())
    for name in _MODULES:
        sys.modules.pop(name, None)
    for module, names in ((os, _OS), (signal, _SIGNALS), (mmap, _MMAP)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in ("add_signal_handler", "remove_signal_handler"):
        setattr(asyncio.SelectorEventLoop, name, _no_signal_handlers)
    for name in ("exists", "is_dir", "is_file", "read_text", "read_bytes", "iterdir", "glob", "open", "stat"):
        setattr(pathlib.Path, name, _without_linux_roots(getattr(pathlib.Path, name)))


# These choose their half of the system when they are imported, and are needed as they are here.
import subprocess  # noqa: E402, F401

import psutil  # noqa: E402, F401

_take_away()
