"""What a rank leaves behind of itself, so that the agent can say which of several ranks is to blame.

Two things, and neither asks anything of the step's code. A *trail*: a file of fixed size, mapped into memory, with the
rank's last collective operations, which is there even after SIGKILL. And an *account*, which a thread of the rank gives
when the agent asks for it: where the main thread stands, the exception that is on its way through its `finally` blocks,
and the lock that it waits for. Nothing is written to a disk, and nothing is sent, while all ranks are well.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import linecache
import mmap
import os
import re
import struct
import sys
import threading
import time
from _thread import get_ident
from types import CodeType, FrameType
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.protocol import Operation
from stoker.core.usercode import is_user_file, source_line
from stoker.worker.imports import call_on_import
from stoker.worker.notice import Terminated

SLOTS: Final = 64
"""Operations that a trail holds: the last ones."""
_HEAD: Final = struct.Struct("<Qd")
"""Operations so far, and the seconds that they took together."""
_SLOT: Final = struct.Struct("<Qdd232s")
"""Number, when it began and ended (0: it runs, below 0: it raised) in seconds since the epoch, and its words."""
_START: Final = 64
_SEPARATOR: Final = "\x1f"

COLLECTIVES: Final = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "broadcast_object_list",
        "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter",
        "reduce_scatter_tensor", "scatter", "scatter_object_list",
    }
)  # fmt: skip
"""Functions of torch.distributed that all ranks of a group call in the same order:
https://docs.pytorch.org/docs/stable/distributed.html"""
PEERS: Final = {"irecv": "src", "isend": "dst", "recv": "src", "send": "dst"}
"""Those by which two ranks speak with each other → the argument that names the other one."""
INIT: Final = "init_process_group"
LEAVE: Final = "destroy_process_group"
FORWARD: Final = "DistributedDataParallel.forward"
"""Where ranks with DistributedDataParallel count their batches; its collectives are in C++."""
_ROOTED: Final = {
    "broadcast": "src",
    "reduce": "dst",
    "scatter": "src",
    "gather": "dst",
    "broadcast_object_list": "src",
}
"""Operations with one rank at their root → the argument that names it."""
_WORDS: Final = 4
RAISED: Final = -1.0


class Trail:
    """Writes a rank's operations into a file, whose folder is the agent's."""

    def __init__(self, path: str) -> None:
        self._page = _shared_page(path, _START + SLOTS * _SLOT.size)
        self._numbers = itertools.count(1)
        self._in_groups: dict[str, Iterator[int]] = {}
        self._seconds = 0.0
        self._inside: set[int] = set()
        """Threads that are in an operation: what one calls in its turn is no operation of the step's."""

    def recorded(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, each call of which leaves a slot in the trail."""
        inside, page, pack, now = self._inside, self._page, struct.Struct("<d").pack_into, time.time

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            thread = get_ident()
            if thread in inside:
                return function(*arguments, **keywords)
            inside.add(thread)
            ended, began = RAISED, now()
            at = self._begin(name, began, arguments, keywords)
            try:
                value = function(*arguments, **keywords)
                ended = now()
                return value
            finally:
                inside.discard(thread)
                pack(page, at, ended)
                self._seconds += now() - began
                pack(page, 8, self._seconds)

        return call

    def _begin(self, name: str, began: float, arguments: Any, keywords: Mapping[str, Any]) -> int:
        """Note an operation that begins; returns where its end is to be written."""
        number = next(self._numbers)
        group = _group_of(arguments, keywords) if name in COLLECTIVES else name
        counter = self._in_groups.get(group)
        if counter is None:
            counter = self._in_groups.setdefault(group, itertools.count(1))
        in_group = next(counter)
        words = _SEPARATOR.join((name, group, users_line(sys._getframe(2)), _subject(name, arguments, keywords)))
        at = _START + (number - 1) % SLOTS * _SLOT.size
        _SLOT.pack_into(self._page, at, in_group, began, 0.0, words.encode("utf-8", "replace")[:232])
        _HEAD.pack_into(self._page, 0, number, self._seconds)
        return at + 16

    def watch(self) -> None:
        """Record the operations of torch.distributed, from its import on."""
        wrapped = {
            "torch.distributed.distributed_c10d": lambda module: self._wrap(
                module, {*COLLECTIVES, *PEERS, INIT, LEAVE}
            ),
            "torch.nn.parallel.distributed": lambda module: self._wrap_method(
                getattr(module, "DistributedDataParallel", None)
            ),
        }
        call_on_import(wrapped, lambda name: wrapped[name](sys.modules[name]))

    def _wrap(self, module: Any, names: set[str]) -> None:
        for name in names:
            function = getattr(module, name, None)
            if callable(function):
                setattr(module, name, self.recorded(function, name))

    def _wrap_method(self, owner: Any) -> None:
        if owner is not None:
            owner.forward = self.recorded(owner.forward, FORWARD)


def _shared_page(path: str, size: int) -> mmap.mmap:
    """A new file as a page of memory. Its blocks are there before: to write where a full disk has none is a SIGBUS.
    Where there are none, the page is the rank's alone, and nothing is left of it."""
    try:
        with open(path, "wb+") as file:
            file.truncate(size)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError:
        return mmap.mmap(-1, size)


def trail_file(folder: str, rank: int) -> str:
    """Where a rank leaves its trail."""
    return os.path.join(folder, f"rank-{rank}.trail")


def read_trail(path: str) -> tuple[tuple[Operation, ...], float]:
    """The last operations of a rank, the oldest first, and the seconds that it spent in all of them."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        count, seconds = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return (), 0.0
    operations = []
    for number in range(max(0, count - SLOTS), count):
        in_group, began, ended, text = _SLOT.unpack_from(data, _START + number % SLOTS * _SLOT.size)
        words = text.rstrip(b"\0").decode("utf-8", "replace").split(_SEPARATOR)
        name, group, place, subject = (words + [""] * _WORDS)[:_WORDS]
        operations.append(
            Operation(number=in_group, name=name, subject=subject, group=group, place=place, began=began, ended=ended)
        )
    return tuple(operations), float(seconds)


def _group_of(arguments: Any, keywords: Mapping[str, Any]) -> str:
    """The name of the group that an operation belongs to; "0", torch's name of the first one, where none is given."""
    group = keywords.get("group")
    if group is None:
        for one in arguments:
            if hasattr(type(one), "group_name"):
                return str(one.group_name)
        return "0"
    return str(getattr(group, "group_name", "0"))


def _subject(name: str, arguments: Any, keywords: Mapping[str, Any]) -> str:
    """What an operation is about and must be the same on all ranks: a tensor's shape and type, the root."""
    if name == INIT:
        size, rank = asked_world(arguments, keywords)
        return f"rank {rank} of {size}"
    words = ""
    for one in (*arguments, *keywords.values()):
        if hasattr(one, "dtype"):
            words = tensor_text(one.shape, one.dtype)
            break
    root = _ROOTED.get(name) or PEERS.get(name)
    if root is not None:
        value = keywords.get(root, arguments[1] if len(arguments) > 1 else None)
        if isinstance(value, int):
            return f"{words}, {root}={value}" if words else f"{root}={value}"
    return words


@functools.lru_cache(256)
def tensor_text(shape: Sequence[int], kind: Any) -> str:
    """A tensor's shape and type: "[4, 2] float32"."""
    return f"{list(shape)} {str(kind).removeprefix('torch.')}"


def asked_world(arguments: Any, keywords: Mapping[str, Any]) -> tuple[int, int]:
    """The world size and the rank that a call of `init_process_group` asks for, of its own or by the environment."""
    values = []
    for at, name in ((3, "world_size"), (4, "rank")):
        value = keywords.get(name, arguments[at] if len(arguments) > at else -1)
        text = os.environ.get(name.upper(), "") if value in (None, -1) else value
        values.append(int(text) if str(text).lstrip("-").isdecimal() else -1)
    return values[0], values[1]


_users: dict[CodeType, bool] = {}
_places: dict[tuple[CodeType, int], str] = {}


def users_line(frame: FrameType | None) -> str:
    """The innermost line of the user's that a frame was called from; empty where there is none."""
    while frame is not None:
        code = frame.f_code
        own = _users.get(code)
        if own is None:
            own = _users[code] = _is_users(code.co_filename)
        if own:
            at = (code, frame.f_lineno)
            place = _places.get(at)
            if place is None:
                place = _places[at] = source_line(code.co_filename, frame.f_lineno)
            return place
        frame = frame.f_back
    return ""


# The account


class RankWitness:
    """Remembers what threads of a rank died of, and gives an account of the rank when it is asked."""

    def __init__(self, describe: Callable[[BaseException], Any]) -> None:
        self._main = threading.main_thread().ident or 0
        self._describe = describe
        self._dead: list[tuple[str, Any]] = []

    def listen(self) -> None:
        """Remember the exceptions that threads die of; Python prints them, and nobody else hears of them."""
        before = threading.excepthook

        def hook(facts: threading.ExceptHookArgs) -> None:
            if facts.exc_value is not None and len(self._dead) < 4:
                # Not the exception: its frames hold on to what the thread worked with.
                self._dead.append((facts.thread.name if facts.thread else "", self._describe(facts.exc_value)))
            before(facts)

        threading.excepthook = hook

    def account(self) -> dict[str, Any]:
        """Where the main thread stands, what it waits for, what is being raised in it, and what threads died of."""
        frame = sys._current_frames().get(self._main)
        raised: Any = sys._current_exceptions().get(self._main)
        raised = raised[1] if isinstance(raised, tuple) else raised  # Python 3.10 and 3.11 have a tuple here
        while isinstance(raised, Terminated):  # it came while the exception that counts was on its way
            raised = raised.__context__
        if raised is not None and is_handled(raised, frame):
            raised = None
        stands, text = standing(frame)
        return {
            "stands": stands,
            "text": text,
            "lock": file_lock_text(os.getpid()) or (lock_text(frame, self._main) if frame is not None else ""),
            "raising": None if raised is None else self._describe(raised),
            "threads": self._dead,
        }


def is_handled(error: BaseException, frame: FrameType | None) -> bool:
    """Whether a thread that stands in this frame goes on after an exception: in an `except` block without `raise`."""
    caught = error.__traceback__.tb_frame.f_code if error.__traceback__ is not None else None
    while frame is not None and frame.f_code is not caught:
        frame = frame.f_back
    if frame is None:
        return False
    line = frame.f_lineno
    blocks = [
        node
        for node in _nodes_of(frame)
        if isinstance(node, ast.ExceptHandler) and node.body[0].lineno <= line <= (node.end_lineno or 0)
    ]
    return bool(blocks) and not any(isinstance(node, ast.Raise) for node in ast.walk(blocks[-1]))


def _nodes_of(frame: FrameType) -> Iterator[ast.AST]:
    """The syntax of a frame's file; nothing where it cannot be read."""
    with contextlib.suppress(SyntaxError, OSError, ValueError, RecursionError):
        yield from ast.walk(ast.parse("".join(linecache.getlines(frame.f_code.co_filename))))


def _is_users(file: str) -> bool:
    """Whether code is the user's, of a file or a notebook; what libraries make of texts is in no file either."""
    return is_user_file(file) and (not file.startswith("<") or file.startswith(("<ipython", "<stdin")))


def standing(frame: FrameType | None) -> tuple[str, str]:
    """The user's line at which a thread stands, and its text."""
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "", ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return source_line(file, line), linecache.getline(file, line).strip()[:120]


def file_lock_text(pid: int) -> str:
    """The file lock that a process waits for, and who holds it, as the kernel says: proc_locks(5)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/locks") as file:
            rows = [line.split() for line in file]
        for row in rows:
            if row[1] == "->" and int(row[5]) == pid:
                holder = next(int(other[4]) for other in rows if other[0] == row[0] and other[1] != "->")
                return f"the lock of the file {_file_of(pid, int(row[6].split(':')[2]))}, {_process_text(holder)}"
    return ""


def _file_of(pid: int, inode: int) -> str:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if os.stat(f"{folder}/{name}").st_ino == inode:
                return os.readlink(f"{folder}/{name}")
    return f"with the inode {inode}"


def _process_text(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        name = file.read().strip()
    with open("/proc/self/comm") as file:
        own = file.read().strip()
    # Ranks are called by the name of their job, and their number (`worker.beside`).
    job, _, rank = name.rpartition("-")
    if job and job == own.rpartition("-")[0]:
        return f"which rank {rank} holds"
    return f"which process {pid} ({name}) holds"


_LOCKS: Final = (
    "_thread.lock",
    "_thread.RLock",
    "multiprocessing.synchronize.Lock",
    "multiprocessing.synchronize.RLock",
)
_OWNER: Final = re.compile(r"owner=(\d+)")


def lock_text(frame: FrameType, thread: int) -> str:
    """The lock that a thread waits for at its line, and who holds it; empty where it waits for none.

    Python does not say who holds a lock: it is looked for among the `with` blocks in which the threads of this process
    stand.
    """
    users = frame
    while not _is_users(users.f_code.co_filename):
        if users.f_back is None:
            return ""
        users = users.f_back
    for name, lock in _locks_at(users):
        if _is_free(lock):
            continue
        holder = _holder(lock, users, thread)
        return f"the lock {name}, {holder}" if holder else f"the lock {name}, which is held"
    return ""


def _locks_at(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The locks that the line of a frame names, by the names that it has for them."""
    for node in _nodes_of(frame):
        if isinstance(node, (ast.Name, ast.Attribute)) and node.lineno == frame.f_lineno:
            value = _value_of(node, frame)
            if _is_lock(value):
                yield ast.unparse(node), value


def _value_of(node: ast.AST, frame: FrameType) -> Any:
    """The value of a name or of attributes of one, as far as looking at it runs no code; None for any other."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return getattr(_value_of(node.value, frame), "__dict__", {}).get(node.attr)
    return None


def _is_lock(value: object) -> bool:
    return f"{type(value).__module__}.{type(value).__qualname__}" in _LOCKS


def _is_free(lock: Any) -> bool:
    return "unlocked" in repr(lock) or "owner=None" in repr(lock)


def _holder(lock: Any, waits: FrameType, thread: int) -> str:
    """Which thread has taken a lock, and where: one that stands in a `with` block of it; empty where none is found."""
    names = {one.ident: one.name for one in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        place: FrameType | None = frame
        while place is not None:
            line = _with_line(lock, place) if _is_users(place.f_code.co_filename) else 0
            if line:
                taken = source_line(place.f_code.co_filename, line)
                if ident == thread:
                    return f"which the same thread has taken at {taken}"
                return (
                    f"which thread {names.get(ident, ident)!r} has taken at {taken}; it stands at {standing(frame)[0]}"
                )
            place = place.f_back
    owner = _OWNER.search(repr(lock))
    return f"which thread {names[int(owner.group(1))]!r} holds" if owner and int(owner.group(1)) in names else ""


def _with_line(lock: Any, frame: FrameType) -> int:
    """The line of the `with` block of a lock in whose body a frame stands; 0 where it stands in none."""
    for node in _nodes_of(frame):
        if not isinstance(node, ast.With) or not node.body[0].lineno <= frame.f_lineno <= (node.end_lineno or 0):
            continue
        if any(_value_of(item.context_expr, frame) is lock for item in node.items):
            return node.lineno
    return 0
