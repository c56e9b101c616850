"""The driver's side of mailboxes (`core.orders`): sends orders to waiting programs, and reads what becomes of them."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.backends.base.platforms import Away
from stoker.backends.base.statuses import failed, of_boot, read_result
from stoker.core import orders as mailbox
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import SettingsError, StokerError
from stoker.core.orders import BootSpec, MailEnd, MailOrder, MailPiece, MailState
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import RESULT
from stoker.core.status import CANCELLED, WORKER_LOST
from stoker.store import notes


def archive(folder: Path) -> bytes:
    """A folder as a zip archive: the same bytes for the same files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()


ABOUT: Final = "about.json"
"""What a later driver must know of an order, in the order's folder."""
_LIBRARIES: Final = ("botocore", "aiobotocore", "aiohttp", "google", "gcsfs", "azure", "adlfs")
"""Libraries of object stores, whose own exceptions mean that a store does not answer as it should."""

Result = TypeVar("Result")
Note = TypeVar("Note", MailState, MailPiece, MailOrder)


@attrs.frozen(kw_only=True)
class OrderInfo:
    """What a later driver must know of an order, to adopt its job."""

    version: int = 1
    key: str
    kind: str
    """As `adoption.job_kind` has it."""
    attempt: int
    digest: str
    """`messages.request_digest` of the job."""


@attrs.define(kw_only=True, eq=False)
class Letter:
    """An order on its way, and how much of its output was read."""

    box: str
    """The mailbox."""
    number: int
    read: int = 0
    """Pieces of output that were read."""

    @property
    def folder(self) -> str:
        """The order's own folder."""
        return f"{self.box}/{mailbox.order_folder(self.number)}"


@attrs.frozen(kw_only=True)
class LetterNews:
    """What is new of an order."""

    state: MailState
    output: Sequence[tuple[str, bytes]] = ()
    """Stream and bytes."""
    result: bytes | None = None
    """The job's result, once it is over; None where it left none."""


def asked(words: str, call: Callable[[], Result]) -> Result:
    """The answer of the artifact store; `Away` where it does not answer."""
    try:
        return call()
    except StokerError:
        raise
    except Exception as error:  # whatever the store's own library raises
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES:
            raise Away(f"the artifact store does not answer ({words}): {type(error).__name__}: {error}") from error
        raise


def bring_worker(bundle: str, place: str) -> None:
    """Leave Stoker's worker, the folder `bundle`, as an archive in the artifact store, unless it is there; `Away` where
    the store does not answer."""
    if asked("worker", lambda: notes.get(place)) is None:
        data = archive(Path(bundle))
        asked("worker", lambda: notes.put(place, data))


def send(letter: Letter, document: BootSpec, about: OrderInfo) -> None:
    """Leave an order; the order itself is written last."""
    _put(f"{letter.folder}/{mailbox.JOB}", document)
    _put(f"{letter.folder}/{ABOUT}", about)
    _put(f"{letter.box}/{mailbox.order_note(letter.number)}", MailOrder())


def dismiss(box: str, number: int, code: int) -> None:
    """Have the program of a mailbox end with an exit code when it has done what was ordered."""
    _put(f"{box}/{mailbox.order_note(number)}", MailOrder(leave=code))


def ask_end(letter: Letter, grace: float) -> None:
    """Have the job of an order end within `grace` seconds."""
    _put(f"{letter.box}/{mailbox.end_note(letter.number)}", MailEnd(grace=grace))


def look(letters: Sequence[Letter]) -> dict[Letter, LetterNews]:
    """What is new of orders; those that nobody has taken are not mentioned."""
    states = _read(MailState, {f"{one.box}/{mailbox.state_note(one.number)}": one for one in letters})
    wanted = {
        f"{one.box}/{mailbox.piece_note(one.number, piece)}": (one, piece)
        for one, state in states.items()
        for piece in range(one.read, state.pieces)
    }
    pieces = _read(MailPiece, wanted)
    ended = {f"{one.folder}/{RESULT}": one for one, state in states.items() if state.over}
    results = asked("result", lambda: notes.get_all(list(ended))) if ended else {}
    news = {}
    for one, state in states.items():
        output = [
            (stream, text.encode("latin-1"))
            for piece in range(one.read, state.pieces)
            if (one, piece) in pieces  # an earlier driver may have read and removed them
            for stream, text in pieces[one, piece].frames
        ]
        one.read = state.pieces
        news[one] = LetterNews(state=state, output=output, result=results.get(f"{one.folder}/{RESULT}"))
    return news


def are_up(boxes: Sequence[str]) -> set[str]:
    """Those of the mailboxes whose programs wait, or have waited."""
    there = asked("mailboxes", lambda: notes.get_all([f"{box}/{mailbox.UP}" for box in boxes]))
    return {path.rpartition("/")[0] for path in there}


def orders(box: str) -> Iterator[tuple[Letter, OrderInfo | None, MailState | None]]:
    """The orders of a mailbox, as an earlier driver left them; those that only end the program have no description."""
    numbers = sorted(int(name) for name in asked("orders", lambda: notes.names(box)) if name.isdecimal())
    for number in numbers:
        letter = Letter(box=box, number=number)
        about = asked("order", lambda letter=letter: notes.get(f"{letter.folder}/{ABOUT}"))  # type: ignore[misc]
        states = _read(MailState, {f"{box}/{mailbox.state_note(number)}": letter})
        yield (
            letter,
            None if about is None else from_json(OrderInfo, parse_json(about), strict=False),
            states.get(letter),
        )


def result(letter: Letter) -> bytes | None:
    """The result of an order's job; None where it left none."""
    return asked("result", lambda: notes.get(f"{letter.folder}/{RESULT}"))


def went_well(letter: Letter) -> bool:
    """Whether an order's job is over with a result that is a success."""
    data = result(letter)
    return data is not None and read_result(data).ok


def status_of(job: Job, news: LetterNews, *, ended: bool) -> JobStatus:
    """The status of a job whose program has said that it is over; `ended`: it was told to end."""
    if news.result is not None:
        return of_boot(read_result(news.result), None, memory=int(job.step.settings.resources.get("memory", 0)))
    if ended:
        return failed(CANCELLED)
    code = news.state.code
    why = f"signal {-code}" if code < 0 else f"exit code {code}"
    return attrs.evolve(failed(WORKER_LOST, f"Stoker's worker ended without a result: {why}"), exit_code=code)


def keep_samples(job: Job, path: str, samples: Iterable[bytes | None]) -> None:
    """Bring the samples of a job's devices here, of each node, where the receipt is made: to `path` and beside it."""
    if not job.step.settings.resources.gpus_per_node or job.kind != "step":
        return
    stem, dot, ending = path.rpartition(".")
    for node, data in enumerate(samples):
        if data is not None:
            place = Path(f"{stem}-{node}{dot}{ending}" if node else path)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


def samples(letter: Letter) -> bytes | None:
    """What the monitor of the order's devices has written; None where there were none."""
    return asked("samples", lambda: notes.get(f"{letter.folder}/{mailbox.SAMPLES}"))


def clear(letter: Letter) -> None:
    """Remove what was read of an order that is over; the order and its state stay, by which its program counts."""
    names = [mailbox.JOB, RESULT, mailbox.SAMPLES]
    paths = [f"{letter.folder}/{name}" for name in names]
    paths += [f"{letter.box}/{mailbox.piece_note(letter.number, piece)}" for piece in range(letter.read)]
    with contextlib.suppress(Away):  # it is removed with the run's folder
        for path in paths:
            asked("removal", lambda path=path: notes.remove(path))  # type: ignore[misc]


def _read(kind: type[Note], paths: Mapping[str, Any]) -> dict[Any, Note]:
    """The notes that are there, by what the paths stand for."""
    texts = asked("notes", lambda: notes.get_all(list(paths))) if paths else {}
    try:
        return {paths[path]: from_json(kind, parse_json(text), strict=False) for path, text in texts.items()}
    except SettingsError as error:
        raise Away(f"a note in the artifact store cannot be read: {error.message}") from error


def _put(path: str, document: Any) -> None:
    text = json.dumps(to_json(document), separators=(",", ":")).encode()
    asked("order", lambda: notes.put(path, text))
