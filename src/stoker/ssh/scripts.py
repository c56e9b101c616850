"""What is asked of a far machine's shell, as text: POSIX sh with the tools that every Linux has, no Python.

The scripts travel on standard input, so that neither the length of a command line nor the quoting of somebody's login
shell limits what is in them. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
from shlex import quote
from typing import Final, Iterable, Iterator, Mapping, Sequence

from stoker.core.errors import BackendError

BEGIN: Final = "stoker-begins-here"
"""Written before an answer: what a login script printed stands before it, and is dropped."""
SHELL: Final = """/bin/sh -c 'eval "$(cat)"'"""
"""Runs the script on its standard input, read whole before it begins. Means the same in every login shell."""
SHORT: Final = 4
"""The code by which a script says that it did not get all bytes of a file."""
GATHERED: Final = 32 << 20
"""Bytes of all files that are brought at once; what is more waits for the next call."""
MISSING: Final = 3
"""The code by which a script says that there is no such file."""
_END: Final = "stoker-ends-here"
_LEVEL: Final = 6
"""Of gzip. Python's usual 9 takes three times as long for Stoker's own files, and makes them 1 % smaller."""
_ARGUMENTS: Final = 64 << 10
"""Bytes of the arguments of one command; a single one may have 128 KiB, all of them 2 MiB.
https://man7.org/linux/man-pages/man2/execve.2.html"""

# Of the list before the empty line it learns offsets, of what `wc -c` says after it sizes: from, bytes and path of each
# file that grew.
_GROWN: Final = """
!sizes && $0 == "" { sizes = 1; next }
{ n = match($0, /[0-9] /); number = substr($0, 1, n) + 0; path = substr($0, n + 2) }
!sizes { offset[path] = number; next }
(path in offset) && number > offset[path] && total < gathered {
    fresh = number - offset[path]
    if (fresh > limit) fresh = limit
    total += fresh
    printf "%.0f %.0f %s\\n", offset[path] + 1, fresh, path
}
"""


def reading(size: int) -> str:
    """Runs a script of `size` bytes on its standard input, behind which the script's own input stands."""
    # One byte at a time, because what is read ahead would be lost to the script.
    return f"""/bin/sh -c 'eval "$(dd bs=1 count={size} 2>/dev/null)"'"""


def command(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """Call a command that reads nothing. Its code 255 becomes 254: 255 is ssh's own."""
    words = [f"{name}={quote(value)}; export {name}" for name, value in environment.items()]
    call = " ".join(map(quote, argv))
    return "\n".join([*words, f"echo {BEGIN}", f"{call} </dev/null", *_CODE])


def command_line(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """The same for a command that reads standard input: for a command line, in one line."""
    words = [f"{name}={quote(value)}; export {name};" for name, value in environment.items()]
    script = f'{" ".join(words)} echo {BEGIN}; "$@"; {" ".join(f"{line};" for line in _CODE)}'
    return f"/bin/sh -c {quote(script)} sh {' '.join(map(quote, argv))}"


_C_LOCALE: Final = ("LC_ALL=C", "export LC_ALL")
"""Or the words of errors are those of somebody's language (`says_full`)."""
_CODE: Final = ("code=$?", "if [ $code -eq 255 ]", "then code=254", "fi", "exit $code")


def greeting() -> str:
    """The home folder, then the variables of somebody who logs in: sbatch may be found only by what a profile sets."""
    login = '"${SHELL:-/bin/sh}" -lc env </dev/null 2>/dev/null'
    # A profile that waits for something is not waited for.
    return f'echo {BEGIN}\nprintf "%s\\n" "$HOME"\nenv\ntimeout 20 {login}\nexit 0'


def write(files: Mapping[str, bytes], mode: int) -> str:
    """Write files beside their names by one archive, then rename them."""
    token = hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:16]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=_LEVEL, format=tarfile.GNU_FORMAT) as tar:
        for path, data in files.items():
            info = tarfile.TarInfo(f"{absolute(path).lstrip('/')}.part-{token}")
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    folders = sorted({os.path.dirname(path) for path in files})
    return "\n".join(
        [
            "umask 077",
            f"echo {BEGIN}",
            *(f"mkdir -p -- {words} || exit 1" for words in _chunks(folders)),
            "base64 -d <<'E' | tar -xzomf - -C / || exit 1",
            base64.encodebytes(archive.getvalue()).decode() + "E",
            f'while IFS= read -r path; do mv -f -- "$path.part-{token}" "$path" || exit 1; done <<\'E\'',
            *files,
            "E",
        ]
    )


def append(path: str, data: bytes) -> str:
    """Append bytes to a file; where that fails half way, the file gets its former size back."""
    return "\n".join(
        [
            f"echo {BEGIN}",
            f"path={quote(absolute(path))}",
            'size=$(wc -c <"$path") || exit 1',
            "base64 -d <<'E' >>\"$path\" && exit 0",
            base64.encodebytes(data).decode() + "E",
            'truncate -s "$((size))" -- "$path"',
            "exit 1",
        ]
    )


def read(path: str) -> str:
    """A file's bytes, or the code `MISSING`."""
    name = quote(absolute(path))
    return f"echo {BEGIN}\n[ -e {name} ] || exit {MISSING}\ncat -- {name}"


def exists(path: str) -> str:
    """Code 0 where there is such a file or folder, 1 where there is none."""
    return f"echo {BEGIN}\n[ -e {quote(absolute(path))} ]"


def remove(paths: Iterable[str]) -> str:
    """Take folders or files away."""
    lines = [f"rm -rf -- {words} || code=1" for words in _chunks([removable(path) for path in paths])]
    return "\n".join([f"echo {BEGIN}", "code=0", *lines, "exit $code"])


def tails(offsets: Mapping[str, int], limit: int) -> str:
    """What files have beyond an offset, each behind a line of its size and its path.

    However many there are, a handful of processes looks for those that grew; only these cost one more.
    """
    for path in offsets:
        absolute(path)
    program = f"awk -v limit={int(limit)} -v gathered={GATHERED} {quote(_GROWN)}"
    return "\n".join(
        [
            "LC_ALL=C; export LC_ALL",
            f"echo {BEGIN}",
            "{ cat <<'E'",
            *(f"{int(offset)} {path}" for path, offset in offsets.items()),
            "E",
            "echo",
            *(f"wc -c -- {words}" for words in _chunks(list(offsets))),
            f"}} 2>/dev/null | {program} | while IFS= read -r line; do",
            'from=${line%% *}; line=${line#* }; bytes=${line%% *}; path=${line#* }; printf "%s\\n" "$line"',
            'tail -c "+$from" -- "$path" | head -c "$bytes"',
            "done",
            f"echo {_END}",
        ]
    )


def pieces(answer: bytes) -> dict[str, bytes] | None:
    """The bytes by path in an answer to `tails`; None where it is not whole, as when a file was cut meanwhile."""
    contents: dict[str, bytes] = {}
    end = f"{_END}\n".encode()
    position = 0
    while not (answer.startswith(end, position) and position + len(end) == len(answer)):
        line = answer.find(b"\n", position)
        size, _, path = answer[position:line].partition(b" ")
        if line < 0 or not size.isdigit() or not path.startswith(b"/") or line + 1 + int(size) > len(answer):
            return None
        position = line + 1 + int(size)
        contents[path.decode(errors="surrogateescape")] = answer[line + 1 : position]
    return contents


def receive(path: str, part: str, size: int, offset: int) -> str:
    """Append standard input to a partial file, and give it its name once it has `size` bytes; read-only from then on.

    With an offset the partial file is continued, and must have that many bytes."""
    part_name, name = quote(absolute(part)), quote(absolute(path))
    return "\n".join(
        [
            *_C_LOCALE,
            "umask 077",
            f"echo {BEGIN}",
            f"mkdir -p -- {quote(os.path.dirname(part))} {quote(os.path.dirname(path))} || exit 1",
            f'[ "$(wc -c <{part_name})" -eq {int(offset)} ] || exit {SHORT}' if offset else f": >{part_name} || exit 1",
            f"cat >>{part_name} || exit 1",
            f'[ "$(wc -c <{part_name})" -eq {int(size)} ] || exit {SHORT}',
            f"chmod 400 -- {part_name} && mv -f -- {part_name} {name}",
        ]
    )


def send(path: str, offset: int) -> str:
    """A file's size in a line, and its bytes from an offset on; or the code `MISSING`."""
    name = quote(absolute(path))
    lines = [*_C_LOCALE, f"echo {BEGIN}", *_unless_there(name), f"wc -c <{name} || exit 1"]
    return "\n".join([*lines, f"tail -c +{int(offset) + 1} -- {name}"])


def sizes(paths: Sequence[str]) -> str:
    """A line for each file that is there: its size, its age in seconds by that machine's clock, and its path."""
    for path in paths:
        absolute(path)
    return "\n".join(
        [
            *_C_LOCALE,
            f"echo {BEGIN}",
            "now=$(date +%s)",
            *(f"stat -L -c '%s %Y %n' -- {words}" for words in _chunks(paths)),
            "echo $now",
        ]
    )


def renew(path: str, size: int) -> str:
    """Give a file of this size the present time; code `MISSING` where there is none of this size."""
    name = quote(absolute(path))
    lines = [*_C_LOCALE, f"echo {BEGIN}", *_unless_there(name)]
    return "\n".join([*lines, f'[ "$(wc -c <{name})" -eq {int(size)} ] || exit {MISSING}', f"touch -c -- {name}"])


def remove_older(path: str, seconds: float) -> str:
    """Remove a file that was written longer ago than this by that machine's clock; writes its size, or nothing."""
    name = quote(absolute(path))
    return "\n".join(
        [
            *_C_LOCALE,
            f"echo {BEGIN}",
            *_unless_there(name),
            f"facts=$(stat -c '%Y %s' -- {name}) || exit 1",
            f"[ $(($(date +%s) - ${{facts%% *}})) -gt {int(seconds)} ] || exit 0",
            f"rm -f -- {name} && echo ${{facts#* }}",
        ]
    )


def rename(path: str, target: str) -> str:
    """Move a file; code `MISSING` where there is none."""
    name, new = quote(absolute(path)), quote(absolute(target))
    lines = [*_C_LOCALE, "umask 077", f"echo {BEGIN}", *_unless_there(name)]
    return "\n".join([*lines, f"mkdir -p -- {quote(os.path.dirname(target))} && mv -f -- {name} {new}"])


def files(folder: str) -> str:
    """The paths of all files in a folder, each in a line; nothing of a folder that is not there."""
    name = quote(absolute(folder))
    return "\n".join([*_C_LOCALE, f"echo {BEGIN}", f"[ -e {name} ] || exit 0", f"find {name}/ -type f"])


def unlink(paths: Sequence[str]) -> str:
    """Remove files; those that are gone are fine."""
    for path in paths:
        absolute(path)
    return "\n".join([*_C_LOCALE, f"echo {BEGIN}", *(f"rm -f -- {words} || exit 1" for words in _chunks(paths))])


def bring(target: str) -> str:
    """For a command line: unpack the archive on standard input as a folder that is whole or absent."""
    script = (
        f'echo {BEGIN}; umask 077; part=$1.part-$$; rm -rf -- "$part"; '
        'mkdir -p -- "$part" && tar -xzomf - -C "$part" && { [ -e "$1" ] || mv -- "$part" "$1"; }; '
        'code=$?; rm -rf -- "$part"; exit $code'
    )
    return f"/bin/sh -c {quote(script)} sh {quote(absolute(target))}"


def archive(folder: str) -> bytes:
    """All that is in a folder, for `bring`."""
    data = io.BytesIO()
    with tarfile.open(
        fileobj=data, mode="w:gz", compresslevel=_LEVEL, format=tarfile.GNU_FORMAT, dereference=True
    ) as tar:
        tar.add(folder, ".")
    return data.getvalue()


def _unless_there(name: str) -> list[str]:
    """The lines that end a script with `MISSING` if a quoted path is not there, and with 1 if that cannot be seen."""
    # `ls` tells a file that is not there from a folder that may not be looked into; `test` does not.
    return [
        f"if [ ! -e {name} ]; then",
        f"  words=$(ls -d -- {name} 2>&1) && exit {MISSING}",
        f'  case $words in *"No such file"*|*"Not a directory"*) exit {MISSING} ;; esac',
        '  echo "$words" >&2',
        "  exit 1",
        "fi",
    ]


def absolute(path: str) -> str:
    """The path itself; refused where the scripts could mean another one."""
    if not path.startswith("/") or "\n" in path:
        raise BackendError(f"{path!r} is no absolute path of one line")
    return path


def removable(path: str) -> str:
    """The path itself; refused where it is no folder of somebody's, whatever went wrong before."""
    if len(os.path.normpath(absolute(path)).split("/")) < 3 or path.startswith("//"):  # such as "/" and "/home"
        raise BackendError(f"{path!r} is not a folder that may be removed")
    return path


def _chunks(paths: Sequence[str]) -> Iterator[str]:
    """Quoted paths, as many in one text as a command line takes."""
    words: list[str] = []
    size = 0
    for path in paths:
        word = quote(path)
        if words and size + len(word) > _ARGUMENTS:
            yield " ".join(words)
            words, size = [], 0
        words.append(word)
        size += len(word.encode(errors="surrogateescape")) + 1
    if words:
        yield " ".join(words)


def says_full(words: str) -> bool:
    """Whether a shell's error says that a disk or a quota is full, in the C locale's words."""
    return "No space left on device" in words or "Disk quota exceeded" in words
