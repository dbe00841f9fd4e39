"""Files, read and written in one way each.

Only regular files are read, and only up to a size that is known before. Files are written whole or not at all, and are on the
disk before they take the place of what was there.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from widemargin.errors import InputError, show

SETTINGS_BYTES = 1 << 26  # bytes of a file of settings, 64 MB
PARTS = (
    1 << 20
)  # lists and texts that a JSON file may hold, whatever its size: each takes 64 bytes of memory, an object 184,
BYTES = 8  # and of JSON that there must be for each above that
ALWAYS = 1 << 26  # bytes that an archive may unpack to, whatever its own size,
RATIO = 200  # and how many times its own size on top of that
ENTRIES = 1 << 28  # bytes that arrays in a file may take once they are float64, whatever its own size,
TIMES = 64  # and how many times its own size on top of that; real MNIST, compressed bytes, takes 38
NEW = (
    os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
)  # opens what is not there


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most `most` bytes; FileNotFoundError where there is none, else an InputError.

    >>> from pathlib import Path
    >>> from widemargin.disk import read_file
    >>> size = Path("a.txt").write_text("four")
    >>> read_file("a.txt", 4)
    b'four'
    >>> read_file("a.txt", 3)
    Traceback (most recent call last):
    widemargin.errors.InputError: a.txt has 4 bytes, and at most 3 are read; give a smaller file
    """
    name = show_path(path)
    try:
        # Without waiting: a pipe that nobody writes to would never open.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:  # what should be a folder is a file, and has no files in it
        raise FileNotFoundError(error.errno, error.strerror, name) from None
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or "this is no legal path"
        raise InputError(f"cannot read {name}: {why}; check the path") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, a pipe or a socket"
        raise InputError(f"cannot read {name}: this is {what}; give a file")
    with os.fdopen(handle, "rb") as file:
        if status.st_size > most:
            raise InputError(f"{name} has {status.st_size} bytes, and at most {most} are read; give a smaller file")
        try:
            # What is there now, whatever comes meanwhile. Python takes as much memory as it is asked to read, not as there is.
            return file.read(status.st_size)
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror or error}; check the disk") from None


def read_json(path: str | os.PathLike[str], most: int = SETTINGS_BYTES) -> Any:
    """What a JSON file holds. FileNotFoundError where there is none, ValueError where it is no JSON."""
    content = read_file(path, most)
    parts = content.count(b"[") + content.count(b'"') // 2 + 3 * content.count(b"{")
    if parts > PARTS + len(content) // BYTES:
        raise ValueError("far more lists than its size lets expect")
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("lists within lists, too deep to be read") from None


def check_archive(file: BinaryIO, name: str) -> None:
    """An InputError where a zip archive would unpack to far more than it holds. The file is at its beginning afterwards.

    Arrays in it are counted as the numbers that they become, from their heads: a truth value or nothing at all in the file is
    8 bytes then.
    """
    held = file.seek(0, os.SEEK_END)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        whole = sum(member.file_size for member in members)
        if whole > ALWAYS + RATIO * held:
            raise InputError(
                f"{name} unpacks to {whole} bytes, far more than it holds; write it again without compression"
            )
        entries = 0
        for member in members:
            with archive.open(member) as array:
                is_array = array.read(6) == b"\x93NUMPY"  # whatever it is called, numpy reads it as one then
            if is_array:
                with archive.open(member) as array:
                    entries += _sizes(array)[1]
    _check_taken(entries, held, name)
    file.seek(0)


def check_sums(file: BinaryIO) -> None:
    """A ValueError where an array of an .npz file is not what was written. The file is at its beginning afterwards.

    The sum of an array comes at its end, which nobody reads where its head is damaged and says that it is shorter.
    """
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise ValueError(f"{show(broken)} is not what was written")
    file.seek(0)


def check_array(file: BinaryIO, name: str) -> None:
    """The same for an .npy file; a ValueError where it is shorter than it says."""
    held = file.seek(0, os.SEEK_END)
    file.seek(0)
    stored, taken = _sizes(file)
    if stored > held:
        raise ValueError(f"it is to hold {stored} bytes and has {held}")
    _check_taken(taken, held, name)
    file.seek(0)


def _sizes(file: IO[bytes]) -> tuple[int, int]:
    """Bytes of an array in its file, and those that it will take, from its head. A ValueError where it has none."""
    from numpy.lib import format as arrays

    version = arrays.read_magic(file)
    head = arrays.read_array_header_1_0 if version == (1, 0) else arrays.read_array_header_2_0
    try:
        shape, _, kind = head(file)
    except (MemoryError, RecursionError):  # Python's words for thousands of signs before a number; a head is short
        raise ValueError("its head is none of an array") from None
    return math.prod(shape) * kind.itemsize, math.prod(shape) * max(8, kind.itemsize)


def fits_memory(taken: int, held: int) -> bool:
    """Whether a file of `held` bytes may hold arrays that take so many as float64."""
    return taken <= ENTRIES + TIMES * held


def _check_taken(taken: int, held: int, name: str) -> None:
    if not fits_memory(taken, held):
        raise InputError(
            f"{name} holds arrays that take {taken} bytes as numbers, far more than its own {held}; write them uncompressed, "
            "with numpy.savez"
        )


def as_folder(value: Any, what: str = "the folder") -> Path:
    """A path of text as a `Path`; an InputError where it is something else."""
    try:
        return Path(value)
    except TypeError:
        raise InputError(f"{what} must be a path, not {show(value)}; give a text or a pathlib.Path") from None


def show_path(path: str | os.PathLike[str]) -> str:
    """A path in a sentence: as it is where it is short and can be printed."""
    try:
        text = os.fspath(path)
    except TypeError:
        return show(path, 200)
    return text if isinstance(text, str) and text.isprintable() and 0 < len(text) <= 400 else show(text, 200)


def check_replaceable(path: Path) -> None:
    """An InputError where something lies there that is no file, such as a device: it is not replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot write {show_path(path)}: {why}; choose another place") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"cannot write {show_path(path)}: it is there and is no file; give a file name")


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], None]) -> None:
    """Write a file whole or not at all. What is there and is no file, such as a device, is not replaced.

    The content, bytes or a function that writes them to an open file, is on the disk before the file gets its name, and the name
    is before this returns: it survives a power failure.
    """
    check_replaceable(path)
    # Not all of a long name: with what is put behind it, it would be longer than names may be. The name is known before there
    # is such a file: Ctrl-C in the middle of making it leaves none.
    temporary = path.parent / f".{path.name[:40]}.{secrets.token_hex(8)}"
    try:
        try:
            handle = os.open(temporary, NEW, 0o600)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from None
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(
            OSError
        ):  # it has its name already, or the disk takes no changes any more: `error` says so
            os.unlink(temporary)
        if isinstance(
            error, OSError
        ):  # which names no file where the disk is full, and ours that is gone where it does
            error.filename, error.filename2 = str(path), None
        raise
    sync_folder(path.parent)


def make_folders(path: Path) -> None:
    """Make a folder, and those above it, where they are missing. pathlib calls itself once for each of them: too often where
    a path is as deep as its length allows."""
    missing = []
    for each in (path, *path.parents):
        try:
            each.mkdir(exist_ok=True)
            break
        except FileNotFoundError:
            missing.append(each)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)


def open_lock(path: Path) -> int:
    """A descriptor of a file that is there to be locked, made where there is none; a pipe in its place is refused."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InputError(f"{show_path(path)} is no regular file; remove it, or choose another folder")
    return handle


def is_locked(path: Path) -> bool | None:
    """Whether a process holds this lock; None where the file system does not tell, or where there is no such file."""
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (ImportError, OSError, ValueError):
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of below
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def identity(file: Path | int) -> tuple[int, int] | None:
    """Which file this is, by its path or by an open handle: another of the same name differs. None where there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
