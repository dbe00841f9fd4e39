"""Files, read and written in one way each.

Only regular files are read, and only up to a size that is known before. Files are written whole or not at all, and are on the
disk before they take the place of what was there.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from widemargin.errors import InputError, show

SETTINGS_BYTES = 1 << 26  # bytes of a file of settings, 64 MB
ALWAYS = 1 << 26  # bytes that an archive may unpack to, whatever its own size,
RATIO = 200  # and how many times its own size on top of that


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
            content = file.read(most + 1)
        except OSError as error:
            raise InputError(f"cannot read {name}: {error.strerror or error}; check the disk") from None
    if len(content) > most:  # it has grown meanwhile
        raise InputError(f"{name} has more than {most} bytes, which is all that is read; give a smaller file")
    return content


def read_json(path: str | os.PathLike[str], most: int = SETTINGS_BYTES) -> Any:
    """What a JSON file holds. FileNotFoundError where there is none, ValueError where it is no JSON."""
    content = read_file(path, most)
    try:
        return json.loads(content.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("lists within lists, too deep to be read") from None


def check_archive(file: BinaryIO, name: str) -> None:
    """An InputError where a zip archive would unpack to far more than it holds. The file is at its beginning afterwards."""
    held = file.seek(0, os.SEEK_END)
    file.seek(0)
    with zipfile.ZipFile(file) as archive:
        whole = sum(member.file_size for member in archive.infolist())
    if whole > ALWAYS + RATIO * held:
        raise InputError(f"{name} unpacks to {whole} bytes, far more than it holds; write it with numpy.savez")
    file.seek(0)


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
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    try:
        with os.fdopen(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # it has its name already
            os.unlink(temporary)
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


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
