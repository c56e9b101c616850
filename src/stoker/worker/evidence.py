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
import json
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

from stoker.core.codec import to_json
from stoker.core.protocol import Operation
from stoker.core.usercode import is_user_file, source_line
from stoker.system import system
from stoker.worker.imports import call_once_imported, replace
from stoker.worker.notice import Terminated

SLOTS: Final = 64
"""Operations that a trail holds: the last ones."""
_HEAD: Final = struct.Struct("<Qdd")
"""Operations so far, the seconds that the rank waited in all of them, and since when it waits in a backward pass (0: it
does not)."""
_HEAD_TIMES: Final = struct.Struct("<dd")
_WAITED: Final = 8
_SINCE: Final = 16
_pack_time: Final = struct.Struct("<d").pack_into
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
JAX_INIT: Final = "jax.distributed.initialize"
INITS: Final = frozenset({INIT, JAX_INIT})
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
_KNOWN: Final = 1024
"""Operations whose words are kept: lines of code, with the shapes that come there."""
_PLAIN: Final = frozenset({"async_op", "op", "src", "dst"})
"""Arguments by name that are no tensors and no groups."""
RAISED: Final = -1.0


class Trail:
    """Writes a rank's operations into a file, whose folder is the agent's."""

    def __init__(self, path: str) -> None:
        self._page = _shared_page(path, _START + SLOTS * _SLOT.size)
        self._numbers = itertools.count(1)
        self._in_groups: dict[str, Iterator[int]] = {}
        self._words: dict[Any, tuple[Iterator[int], bytes]] = {}
        self._seconds = 0.0
        self._since = 0.0
        self._watched: list[Any] = []
        self._at_its_end: Callable[[Callable[[], None]], None]
        self._inside: set[int] = set()
        """Threads that are in an operation: what one calls in its turn is no operation of the step's."""

    def recorded(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, each call of which leaves a slot in the trail."""
        inside, page, now = self._inside, self._page, time.time
        forward = name == FORWARD

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
                _pack_time(page, at, ended)
                if not forward:  # which computes, and waits for nobody
                    self._seconds += now() - began
                    _pack_time(page, _WAITED, self._seconds)

        return call

    def _begin(self, name: str, began: float, arguments: Any, keywords: Mapping[str, Any]) -> int:
        """Note an operation that begins; returns where its end is to be written."""
        number = next(self._numbers)
        frame = users_frame(sys._getframe(2))
        key = _key(name, frame, arguments, keywords)
        known = None if key is None else self._words.get(key)
        if known is None:
            known = self._new_words(name, frame, arguments, keywords)
            if key is not None and len(self._words) < _KNOWN:
                self._words[key] = known
        counter, words = known
        at = _START + (number - 1) % SLOTS * _SLOT.size
        _SLOT.pack_into(self._page, at, next(counter), began, 0.0, words)
        _HEAD.pack_into(self._page, 0, number, self._seconds, self._since)
        return at + 16

    def _new_words(
        self, name: str, frame: FrameType | None, arguments: Any, keywords: Mapping[str, Any]
    ) -> tuple[Iterator[int], bytes]:
        """The numbers of an operation's group, and what is written of the operation."""
        group = _group_of(arguments, keywords) if name in COLLECTIVES else name
        place = source_line(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
        subject = "" if name == FORWARD else _subject(name, arguments, keywords)
        words = _SEPARATOR.join((name, group, place, subject)).encode("utf-8", "replace")[:232]
        return self._in_groups.setdefault(group, itertools.count(1)), words

    def _watch_backward(self, model: Any) -> None:
        """Count the time that the backward passes of a model in DistributedDataParallel wait for other ranks.

        It waits in a callback at the end of the pass, for which it asks when all gradients are there: one that is asked
        for before the first of them comes before it, and one that this one asks for comes after it.
        """
        parameters = [one for one in model.parameters() if one.requires_grad]
        node = parameters[-1].expand_as(parameters[-1]).grad_fn.next_functions[0][0]  # its accumulator, as DDP has it
        self._at_its_end = sys.modules["torch"].autograd.Variable._execution_engine.queue_callback
        node.register_prehook(lambda gradients: self._at_its_end(self._on_computed))
        self._watched.append(node)

    def _on_computed(self) -> None:
        if not self._since:  # there may be several forward passes for one backward pass
            self._since = time.time()
            _pack_time(self._page, _SINCE, self._since)
            self._at_its_end(self._on_backward)

    def _on_backward(self) -> None:
        self._seconds, self._since = self._seconds + time.time() - self._since, 0.0
        _HEAD_TIMES.pack_into(self._page, _WAITED, self._seconds, 0.0)

    def watch(self) -> None:
        """Record the operations of torch.distributed, from its import on."""
        wrapped = {
            "torch.distributed.distributed_c10d": lambda module: self._wrap(
                module, {*COLLECTIVES, *PEERS, INIT, LEAVE}
            ),
            "jax._src.distributed": lambda module: replace(
                module, "initialize", self.recorded(module.initialize, JAX_INIT)
            ),
            "torch.nn.parallel.distributed": lambda module: self._wrap_model(
                getattr(module, "DistributedDataParallel", None)
            ),
        }
        call_once_imported(wrapped, lambda name: wrapped[name](sys.modules[name]))

    def _wrap(self, module: Any, names: set[str]) -> None:
        for name in names:
            function = getattr(module, name, None)
            if callable(function):
                replace(module, name, self.recorded(function, name))

    def _wrap_model(self, owner: Any) -> None:
        if owner is None:
            return
        owner.forward = self.recorded(owner.forward, FORWARD)
        make = owner.__init__

        @functools.wraps(make)
        def made(model: Any, *arguments: Any, **keywords: Any) -> None:
            make(model, *arguments, **keywords)
            with contextlib.suppress(Exception):  # torch's own objects: without them there is one figure less
                self._watch_backward(model)

        owner.__init__ = made


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
    """The last operations of a rank, the oldest first, and the seconds that it waited in all of them and in backward
    passes."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        count, seconds, since = _HEAD.unpack_from(data)
    except (OSError, struct.error):
        return (), 0.0
    if since:
        seconds += max(0.0, time.time() - since)
    operations = []
    for number in range(max(0, count - SLOTS), count):
        in_group, began, ended, text = _SLOT.unpack_from(data, _START + number % SLOTS * _SLOT.size)
        words = text.rstrip(b"\0").decode("utf-8", "replace").split(_SEPARATOR)
        name, group, place, subject = (words + [""] * _WORDS)[:_WORDS]
        operations.append(
            Operation(number=in_group, name=name, subject=subject, group=group, place=place, began=began, ended=ended)
        )
    return tuple(operations), float(seconds)


def _key(name: str, frame: FrameType | None, arguments: Any, keywords: Mapping[str, Any]) -> Any:
    """What the words of an operation depend on; None where that is not to be had in a moment."""
    if frame is None:
        return None
    if name == FORWARD:
        return name, id(frame.f_code), frame.f_lasti
    if len(arguments) > 1 or not _PLAIN.issuperset(keywords):
        return None
    if not arguments:
        return name, id(frame.f_code), frame.f_lasti, *keywords.items()
    try:
        return name, id(frame.f_code), frame.f_lasti, arguments[0].shape, arguments[0].dtype, *keywords.items()
    except AttributeError:
        return None


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
    if name in INITS:
        size, rank = asked_world(arguments, keywords) if name == INIT else asked_of_jax(arguments, keywords)
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


def asked_of_jax(arguments: Any, keywords: Mapping[str, Any]) -> tuple[int, int]:
    """The number of processes and the number of this one that a call of `jax.distributed.initialize` gives; -1 for one
    that it leaves to JAX."""
    values = (
        keywords.get(name, arguments[at] if len(arguments) > at else None)
        for at, name in ((1, "num_processes"), (2, "process_id"))
    )
    size, rank = (value if isinstance(value, int) else -1 for value in values)
    return size, rank


_users: dict[int, tuple[CodeType, bool]] = {}
"""Whether code is the user's, by its id, and the code itself, so that no other gets its id: to hash code takes as long
as it has instructions."""


def users_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the user's that a frame was called from."""
    while frame is not None:
        code = frame.f_code
        known = _users.get(id(code))
        if known is None:
            known = _users[id(code)] = code, _is_users(code.co_filename)
        if known[1]:
            return frame
        frame = frame.f_back
    return None


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
            "recorded": [to_json(one) for one in recorded_operations()],
        }


def recorded_operations() -> list[Operation]:
    """The last collective operations in torch's flight recorder, which is on for all backends unless
    TORCH_FR_BUFFER_SIZE is 0: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html"""
    library = sys.modules.get("torch._C._distributed_c10d")
    operations = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(library, name, None)
        with contextlib.suppress(Exception):  # torch's own format, which it may change
            document = json.loads(dump(True, False)) if dump is not None else {}
            operations += [_recorded(entry) for entry in document.get("entries", ())[-SLOTS:] if not entry["is_p2p"]]
    return operations[-SLOTS:]


def _recorded(entry: Mapping[str, Any]) -> Operation:
    sizes, kinds = entry["input_sizes"], entry["input_dtypes"]
    return Operation(
        number=int(entry["collective_seq_id"]),
        name=entry["profiling_name"].rpartition(":")[2],
        subject=f"{sizes[0]} {kinds[0].lower()}" if sizes and kinds else "",
        group=entry["process_group"][0],
        began=entry["time_created_ns"] / 1e9,
        ended=entry["time_created_ns"] / 1e9 if entry["retired"] else 0.0,
    )


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
    frame = users_frame(frame)
    if frame is None:
        return "", ""
    file, line = frame.f_code.co_filename, frame.f_lineno
    return source_line(file, line), linecache.getline(file, line).strip()[:120]


def file_lock_text(pid: int) -> str:
    """The file lock that a process waits for, and who holds it, as the kernel says: proc_locks(5)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        rows = [line.split() for line in system.kernel_file("locks").decode().splitlines()]
        for row in rows:
            if row[1] == "->" and int(row[5]) == pid:
                holder = next(int(other[4]) for other in rows if other[0] == row[0] and other[1] != "->")
                return f"the lock of the file {_file_of(pid, int(row[6].split(':')[2]))}, {_process_text(holder)}"
    return ""


def _file_of(pid: int, inode: int) -> str:
    for path, target in system.descriptors_of(pid):
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == inode:
                return target
    return f"with the inode {inode}"


def _process_text(pid: int) -> str:
    name, own = system.name_of(pid), system.name_of(os.getpid())
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
