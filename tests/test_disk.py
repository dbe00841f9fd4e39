"""Files are read and written in one way: regular ones, of a bounded size, whole, and on the disk before they have their name."""

import gzip
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checks import repeated
from test_cli import refused
from widemargin import data, flows, margins, verify
from widemargin.disk import make_folders, read_file, read_json, write_atomically
from widemargin.report.checking import recheck
from widemargin.types import Certificate, Dataset, InputError
from widemargin.verify import files

POINTS = Dataset([[3.0, 4.0], [-3.0, -4.0]], [1, -1])


@pytest.fixture
def pipe(tmp_path):
    """A pipe that nobody writes to: to open it for reading would wait for ever."""
    path = tmp_path / "pipe.json"
    os.mkfifo(path)
    return path


def test_what_is_no_regular_file_is_not_read(pipe, tmp_path):
    for path in (pipe, tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="this is a"):
            read_file(path, 10)
        with pytest.raises(ValueError, match="cannot read the certificate"):
            verify.load(path)
        with pytest.raises(InputError, match="cannot be read"):
            Certificate.load(path)
    assert "is no regular file" in refused("verify", pipe, "dyadic:d=2")
    for name in ("d.csv", "d.npz", "d.npy"):
        os.mkfifo(tmp_path / name)
        assert "not a regular file" in refused("margin", tmp_path / name)
    assert "this is a device, a pipe" in refused("sweep", pipe)
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "none", 10)


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "large.json"
    path.touch()
    os.truncate(path, 1 << 40)  # no more than its name takes room on the disk
    with pytest.raises(InputError, match="at most 5 are read"):
        read_file(path, 5)
    assert "it has more than 512 MB" in refused("verify", path, "dyadic:d=2")
    os.rename(path, tmp_path / "large.csv")
    assert "bytes; at most" in refused("margin", tmp_path / "large.csv")


@pytest.mark.parametrize("part", [b"[],", b'{"a":1},', b'"ab",'])
def test_json_of_nothing_but_brackets_is_not_parsed(part, tmp_path):
    """It would take up to thirty times its size: an empty list has 2 bytes of text, and 64 of memory."""
    path = tmp_path / "a.json"
    text = b"[" + part * ((16 << 20) // len(part)) + b"0]"
    for content in (text, gzip.compress(text, 1)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"far more lists|unpacks to more"):
            verify.load(path)
    path.write_bytes(text)
    with pytest.raises(ValueError, match="far more lists"):
        read_json(path)
    assert "far more lists" in refused("verify", path, "dyadic:d=2")
    path.write_bytes(b"[" + b"[0.12345, 0.25]," * 300_000 + b"[]]")  # neurons of a plane
    assert len(verify.load(path)) == len(read_json(path)) == 300_001


def test_too_little_memory_is_no_damage(tmp_path, monkeypatch):
    """Of a file that is whole nobody is told to remove it, and no certificate is refused."""
    run, cert, points = tmp_path / "run", tmp_path / "c.json", tmp_path / "d.npz"
    flows.train(POINTS, flows.TwoLayer(2, 4), flows.GD(), stop=5, keep=run)
    margins.linear(POINTS).save(cert)
    data.save_dataset(POINTS, points)
    payload = verify.load(cert)

    def scarce(*_, **__):
        raise MemoryError

    monkeypatch.setattr(np, "load", scarce)
    for words in (("check", run), ("verify", cert, points), ("margin", points)):
        said = refused(*words)
        assert "not enough memory" in said and "damaged" not in said
    monkeypatch.undo()
    monkeypatch.setattr("widemargin.verify.frame._run", scarce)
    with pytest.raises(MemoryError):
        verify.check(payload, POINTS.X, POINTS.y)
    assert "not enough memory" in refused("verify", cert, points)
    assert recheck(Certificate.load(cert), POINTS).words == "not re-checked (too large for this machine)"


def test_json_that_is_none(tmp_path):
    for text in (b"{", b"\xff", b"[" * 5000, b"1" * 5000):
        (tmp_path / "a.json").write_bytes(text)
        with pytest.raises(ValueError):
            read_json(tmp_path / "a.json")


def test_what_is_no_file_is_not_replaced(pipe, tmp_path):
    """A device or a pipe stays what it is, also behind a link."""
    (tmp_path / "link.json").symlink_to(pipe)
    for path in (pipe, tmp_path / "link.json"):
        with pytest.raises(InputError, match="is no file"):
            write_atomically(path, b"x")
        with pytest.raises(InputError, match="is no file"):
            margins.linear(POINTS).save(path)
        assert "device or a pipe" in refused("margin", "dyadic:d=2", "--kind", "linear", "--save", path)
        assert stat.S_ISFIFO(path.stat().st_mode)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.json", "pipe.json"]


def test_it_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """The content first, then the name, then the folder."""
    done = []
    sync, replace = os.fsync, os.replace

    def synced(handle):
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else os.fstat(handle).st_size)
        sync(handle)

    def named(*names):
        done.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    write_atomically(tmp_path / "a", b"12345")
    write_atomically(tmp_path / "b", lambda file: file.write(b"123"))
    assert done == [5, "name", "folder", 3, "name", "folder"]
    assert (tmp_path / "b").read_bytes() == b"123"


def test_folders_as_deep_as_a_path_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(*["x"] * 1900)
    make_folders(path)
    make_folders(path)  # is there already
    assert path.is_dir()
    for each in (path, *path.parents[:-1]):  # nor can what calls itself remove it
        each.rmdir()
    with pytest.raises(OSError, match="File name too long"):
        make_folders(Path(*["x"] * 3000))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_folders(tmp_path / "file" / "a" / "b")


def test_every_writer_writes_so():
    """No other place in the package opens a file to write it, or renames one."""
    import re

    import widemargin

    writers = re.compile(r"os\.replace|os\.rename|\.rename\(|write_bytes|write_text|open\([^)]*[\"'][wax]b?\+?[\"']")
    folder = Path(widemargin.__file__).parent
    deep = [path.name for path in folder.rglob("*.py") if re.search(r"parents=True|makedirs", path.read_text())]
    assert deep == [], "disk.make_folders does it"
    found = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if any(writers.search(line) and ">>>" not in line for line in path.read_text().splitlines())
    }
    assert found == {"disk.py"}, found


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "a").write_bytes(b"before")

    def fails(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_bytes() == b"before"


def test_ctrl_c_while_the_file_is_made_leaves_nothing(tmp_path, monkeypatch):
    """It is there, and nobody has been given its handle yet."""
    made = os.open

    def interrupted(path, *more):
        made(path, *more)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"whole")
    assert not os.listdir(tmp_path)


def test_a_disk_that_takes_no_changes_any_more(tmp_path, monkeypatch):
    """The file that was being written cannot be removed either; what is said is about the one that was asked for."""

    def read_only(*_):
        raise OSError(30, "Read-only file system", "another name")

    monkeypatch.setattr(os, "fsync", read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomically(tmp_path / "a", b"whole")
    assert caught.value.filename == str(tmp_path / "a")


def test_an_array_that_is_shorter_by_a_flipped_bit(tmp_path):
    """numpy reads what its head says, and does not come to the sum at the end."""
    y = np.tile([1.0, -1.0], 1000)
    np.savez(tmp_path / "a.npz", X=y[:, None] * np.arange(1.0, 4.0), y=y)
    content = (tmp_path / "a.npz").read_bytes()
    assert content.count(b"(2000, 3)") == 1
    (tmp_path / "a.npz").write_bytes(content.replace(b"(2000, 3)", b"(2000, 2)"))
    assert "damaged, truncated or unreadable" in refused("margin", tmp_path / "a.npz", "--kind", "linear")


def test_a_table_with_very_many_columns(tmp_path):
    """A hundred thousand: looking at pairs of names would take for ever."""
    d = 100_000
    path = tmp_path / "wide.csv"
    head = ",".join([f"x{j}" for j in range(d)] + ["y"])
    path.write_text(f"{head}\n{'1,' * d}1\n{'2,' * d}-1\n")
    assert data.load(str(path)).X.shape == (2, d)
    path.write_text(f"{head},x7\n{'1,' * d}1,1\n")
    with pytest.raises(InputError, match="two columns are named 'x7'"):
        data.load(str(path))


def test_an_npy_file_that_claims_more_than_it_holds(tmp_path):
    np.save(tmp_path / "a_y.npy", np.ones(2))
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**4)})
    assert "damaged, truncated or unreadable" in refused("margin", tmp_path / "a.npy")


@pytest.mark.slow
@repeated("moment", [0.15, 0.6, 1.5], 0, 1)
def test_ctrl_c_at_any_moment(moment, tmp_path):
    """While modules are imported, while it computes: one line, status 130, nobody left, no file half-written."""
    words = ["margin", "parity:d=14,n=60", "--tol", "1e-9", "--save", "c.json"]
    code = (
        "import os, signal, sys, threading, time\n"
        "def stop():\n"
        f"    time.sleep({moment})\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        "from widemargin.__main__ import main\n"
        f"sys.argv = ['widemargin', *{words!r}]\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.count("interrupted") <= 1
    for path in tmp_path.iterdir():
        assert Certificate.load(path).status == "interrupted"


@pytest.mark.slow
def test_ctrl_c_in_the_middle_of_an_import(tmp_path):
    """The import that is under way would swallow the exception, or make another one of it."""
    (tmp_path / "numpy.py").write_text(
        "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    for _ in range(10**6): pass\n"
        "except BaseException:\n    raise ImportError('numpy cannot be imported') from None\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "widemargin", "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.slow
def test_an_exception_that_ctrl_c_was_turned_into(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from widemargin import __main__, cli\n"
        "def command():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGINT)\n        sum(range(10**6))\n"
        "    except KeyboardInterrupt:\n        raise RuntimeError('the solver failed') from None\n"
        "cli.main = command\n"
        "sys.exit(__main__.main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_names_as_long_as_they_may_be(tmp_path):
    for name in ("x" * 250 + ".json", "\u00e4" * 125 + ".json"):
        write_atomically(tmp_path / name, b"whole")
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_a_small_file_takes_no_more_memory_than_it_has(tmp_path):
    """However large it might have been: 16 GB for a checkpoint were asked for, which a limit of memory refuses."""
    (tmp_path / "a").write_bytes(b"four")
    assert read_file(tmp_path / "a", 1 << 60) == files._read(tmp_path / "a", 1 << 60) == b"four"


def test_a_file_that_grows_is_read_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "data.csv"
    path.write_text("1,2\n")
    ask = os.fstat

    def grow(handle):
        status = ask(handle)
        with path.open("a") as file:
            file.write("3,4\n")
        return status

    monkeypatch.setattr(os, "fstat", grow)
    assert read_file(path, 100) == b"1,2\n"
