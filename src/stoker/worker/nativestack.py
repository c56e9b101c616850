"""Lets a process that native code brings down say in which library: the frames of C, before faulthandler's of Python.

From Python 3.14 on faulthandler writes them itself. Before, glibc's `backtrace` does, called by a handler that stands
before faulthandler's. It can be no function of Python's, which nobody may call when a process has failed, and no
compiler is at hand: it is a few instructions for x86-64, with the table by which `backtrace` finds its way past them
(DWARF 5, section 6.4). Elsewhere (another processor, musl, a kernel that lets no page be executed) the native frame
stays unknown, and faulthandler's report is as it is.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import re
import signal
import struct
import sys
from typing import Any, Final, Sequence

from stoker.core.values import lazy_pattern
from stoker.system import LINUX

_SIGNALS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
"""Those that faulthandler handles: https://docs.python.org/3/library/faulthandler.html#faulthandler.enable"""
_FRAMES: Final = 18
"""Frames at most; the first two are the handler and the kernel's way to it, and are left out."""
_ROOM: Final = 96
"""Bytes of one signal's handler."""
_TABLE: Final = _ROOM * len(_SIGNALS)
NATIVE_FRAME: Final = lazy_pattern(
    r'(?:  Binary file "(?P<file>.+?)", at |(?P<path>/.+?)\()(?P<symbol>[^()+ ]*)\+?(?P<offset>0x[0-9a-f]+)?\)? ?'
    r"\[0x[0-9a-f]+\]"
)
"""A frame as Python 3.14 and as glibc's backtrace_symbols_fd(3) write it."""
_BESIDE: Final = re.compile(r"(?:libc|libpthread|ld-linux[\w-]*|libstdc\+\+|libgcc_s|libffi|libpython[\d.]+)\.|python")
"""Libraries that fail by what they are asked for: the one that called them is of more interest."""
_page: Any = None
"""The handlers; processes that are forked from this one have them, too."""


def enable() -> None:
    """Let a fault in native code write its frames of C and of Python into this process's stderr."""
    faulthandler.enable(file=2, all_threads=False)
    if sys.version_info >= (3, 14) or _page is not None or not LINUX:
        return
    if os.uname().machine == "x86_64":
        _stand_before()


def _stand_before() -> None:
    """Install a handler before faulthandler's for each of its signals."""
    global _page
    import ctypes

    def address(function: Any) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0

    class Action(ctypes.Structure):
        """https://sourceware.org/git/?p=glibc.git;a=blob;f=sysdeps/unix/sysv/linux/bits/sigaction.h"""

        _fields_ = (
            ("handler", ctypes.c_void_p),
            ("mask", ctypes.c_ubyte * 128),
            ("flags", ctypes.c_int),
            ("restorer", ctypes.c_void_p),
        )

    frames, actions = (ctypes.c_void_p * _FRAMES)(), []
    try:
        library, unwinder = ctypes.CDLL(None), ctypes.CDLL("libgcc_s.so.1")
        # The first call loads what later ones need, which nobody may do when the process has failed.
        library.backtrace(frames, _FRAMES)
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, protection)
        register = unwinder["__register_frame"]
        write = address(library.backtrace_symbols_fd)
    except (OSError, AttributeError, ValueError):
        return
    begin = ctypes.addressof(ctypes.c_char.from_buffer(page))
    for position, number in enumerate(_SIGNALS):
        action = Action()
        library.sigaction(number, None, ctypes.byref(action))
        code = _handler(address(frames), address(library.backtrace), write, action.handler or 0)
        page[position * _ROOM : position * _ROOM + len(code)] = code
        action.handler = begin + position * _ROOM
        actions.append(action)
    table = _unwind_table(begin, _TABLE)
    page[_TABLE : _TABLE + len(table)] = table
    register.argtypes = (ctypes.c_void_p,)
    register(begin + _TABLE)
    for number, action in zip(_SIGNALS, actions):
        library.sigaction(number, ctypes.byref(action), None)
    _page = (page, frames, library, unwinder)


def _handler(frames: int, backtrace: int, write: int, after: int) -> bytes:
    """`write(frames + 2, backtrace(frames, _FRAMES) - 2, 2)`, and then what handled the signal before."""
    return b"".join(
        (
            b"\x53\x89\xfb",  # push rbx; mov ebx, edi
            struct.pack("<2sQ", b"\x48\xbf", frames),  # mov rdi, frames
            struct.pack("<cI", b"\xbe", _FRAMES),  # mov esi, _FRAMES
            struct.pack("<2sQ2s", b"\x48\xb8", backtrace, b"\xff\xd0"),  # mov rax, backtrace; call rax
            struct.pack("<2sQ", b"\x48\xbf", frames + 16),  # mov rdi, frames + 16
            struct.pack("<3scI", b"\x8d\x70\xfe", b"\xba", 2),  # lea esi, [rax-2]; mov edx, 2
            struct.pack("<2sQ2s", b"\x48\xb8", write, b"\xff\xd0"),  # mov rax, write; call rax
            struct.pack("<3s2sQ2s", b"\x89\xdf\x5b", b"\x48\xb8", after, b"\xff\xe0"),  # mov edi, ebx; pop rbx; jmp
        )
    )


def _unwind_table(begin: int, size: int) -> bytes:
    """What .eh_frame has for code whose frame is 16 bytes, with the return address at its top."""
    rules = b"\x0c\x07\x10\x90\x01"  # DW_CFA_def_cfa rsp, 16; DW_CFA_offset of the return address, 1 × -8
    # Version 1, no augmentation, factors 1 and -8, and the register of the return address.
    common = struct.pack("<II5s11s", 20, 0, b"\x01\x00\x01\x78\x10", rules)
    return common + struct.pack("<IIQQII", 24, len(common) + 4, begin, size, 0, 0)


def place_of_native_fault(lines: Sequence[str]) -> str:
    """The library and symbol in which a process failed, and what called it; empty where no line says it."""
    frames = [match for line in lines if (match := NATIVE_FRAME.fullmatch(line.rstrip()))]
    if frames and frames[0]["symbol"] == "_Py_DumpStack":  # Python's own handler, and the kernel's way to it
        way = (number for number, frame in enumerate(frames) if _library(frame).startswith("libc."))
        frames = frames[next(way, 0) + 1 :]
    if not frames:
        return ""
    inner = next((frame for frame in frames if frame["symbol"] == "abort"), frames[0])
    caller = next((frame for frame in frames if not _BESIDE.match(_library(frame))), None) or next(
        (frame for frame in frames if not _library(frame).startswith("libc.")), inner
    )
    return _text(inner) if caller is inner else f"{_text(inner)}, called by {_text(caller)}"


def _library(frame: re.Match[str]) -> str:
    return os.path.basename(frame["file"] or frame["path"])


def _text(frame: re.Match[str]) -> str:
    place = "+".join(filter(None, (frame["symbol"], frame["offset"])))
    return f"{_library(frame)} ({place if frame['symbol'] else f'+{place}'})"
