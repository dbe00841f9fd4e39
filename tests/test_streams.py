"""Where the command line speaks to: streams that are not there, that are full, that nobody reads, and odd terminals."""

import csv
import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import widemargin
from test_cli import SMALL, run
from widemargin import __main__ as door
from widemargin import cli
from widemargin.sweep import Run, Store
from widemargin.verify import __main__ as checker

XOR = "x0,x1,y\n1,1,1\n-1,-1,1\n1,-1,-1\n-1,1,-1\n"


def through(how, *argv, module="widemargin", **env):
    """The command as a shell runs it, with `how` behind it."""
    command = ["sh", "-c", f'"$@" {how}', "sh", sys.executable, "-m", module, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | env)


@pytest.mark.parametrize("columns", ["0", "00", "1", "2", "²", "٣", "-5", "1e3", "9" * 30, "9" * 5000])
def test_odd_sizes_of_a_terminal(columns, monkeypatch):
    """What is no size is not set; tables and sentences are broken at any that is."""
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = run("margin", SMALL, "--kind", "linear", "f2")[1]
    for name in ("COLUMNS", "LINES", "JUPYTER_COLUMNS", "JUPYTER_LINES"):
        monkeypatch.setenv(name, columns)
    status, out, _ = run("margin", SMALL, "--kind", "linear", "f2")
    assert status == 0 and "largest" in "".join(out.split())
    if columns not in ("1", "2"):
        assert out.splitlines()[:3] == wide.splitlines()[:3]
    assert run("margin", SMALL, "--kind", "linear")[0] == 0
    assert run("margin", "--help")[0] == 0


@pytest.fixture
def xor(tmp_path):
    path = tmp_path / "xor.csv"
    path.write_text(XOR)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(xor, tmp_path, how):
    """The status is that of the work, and what is saved is saved: 1 would say that verify refuses the certificate."""
    saved = tmp_path / "cert.json"
    done = through(how, "margin", xor, "--kind", "f2", "--save", saved)
    assert done.returncode == 0 and saved.exists() and "Traceback" not in done.stderr, done
    assert ("written to" in done.stderr) == ("2>&-" not in how)
    assert through(how, "verify", saved, xor).returncode == 0
    assert through(how, "verify", saved, "parity:d=3,n=4").returncode == 1
    done = through(how, "verify", tmp_path / "none.json", xor)
    assert done.returncode == 2 and done.stdout == ""  # a complaint without standard error is no result
    assert ("none.json" in done.stderr) == ("2>&-" not in how)


@pytest.mark.slow
def test_a_result_is_saved_where_the_reader_has_gone(xor, tmp_path):
    read, write = os.pipe()
    os.close(read)
    saved = tmp_path / "cert.json"
    for words in (["margin", xor, "--kind", "f2"], ["fit", xor, "--weight-decay", "0.1"]):
        command = [sys.executable, "-m", "widemargin", *map(str, words), "--save", str(saved)]
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100)
        assert done.returncode == 141 and saved.exists(), done
        saved.unlink()
    os.close(write)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", ["--help", "--version", "margin --help", "theorems"])
def test_help_on_a_full_disk(words):
    done = through("> /dev/full", *words.split())
    assert done.returncode == 2 and "No space left" in done.stderr and done.stderr.count("\n") == 1, done
    assert done.stderr.startswith("widemargin: ")
    done = through(">&-", *words.split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors as Linux gives them")
@pytest.mark.parametrize("most", [7, 8, 9, 10, 12])
def test_few_open_files(tmp_path, most):
    """One sentence, which does not call a store damaged that is whole."""
    from widemargin.sweep import Store

    Store(tmp_path / "s").close()
    script = f'ulimit -n {most}; exec "$0" -m widemargin query s "select 1 as one" --json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, cwd=tmp_path)
    if done.returncode == 0:
        assert (done.stdout, done.stderr) == ('[{"one": 1}]\n', "")
    else:
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done
        assert "ulimit -n" in done.stderr and "damaged" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the size of files")
def test_what_does_not_fit_is_named(xor, tmp_path):
    script = 'ulimit -f 0; trap "" XFSZ; exec "$0" -m widemargin margin xor.csv --kind f2 --save c.json'
    done = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("widemargin: c.json: File too large;"), done
    assert [path.name for path in tmp_path.iterdir()] == ["xor.csv"]


@pytest.mark.slow
def test_a_working_folder_that_is_gone(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone} && rmdir {gone} && exec "$0" -m widemargin verify x.json y.npz'
    ended = subprocess.run(["sh", "-c", script, sys.executable], capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("widemargin: the working folder is gone"), ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_the_checker_alone_says_refused_of_a_certificate_only(xor, tmp_path):
    """Whatever its streams do: status 1 is that of a certificate that does not hold, and a complaint is no result."""
    saved, alone = tmp_path / "cert.json", {"module": "widemargin.verify"}
    assert through("", "margin", xor, "--kind", "f2", "--save", saved).returncode == 0
    for how in (">&-", "2>&-", ">&- 2>&-"):
        assert through(how, saved, xor, **alone).returncode == 0
        done = through(how, tmp_path / "none.json", xor, **alone)
        assert done.returncode == 2 and done.stdout == ""
    done = through("> /dev/full", saved, xor, **alone)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "widemargin.verify", str(saved), str(xor)]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=100)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    done = through("", tmp_path / "a\nb", xor, **alone, PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory that is one")
@pytest.mark.parametrize("most", [200, 400, 500, 600, 1000])  # MB
def test_a_limit_of_memory_that_libraries_do_not_survive(xor, most):
    """Some end the process where they find no room, others leave half a module."""
    script = f'ulimit -c 0 -v {most}000; exec "$0" -m widemargin margin "$1" --kind f1'
    done = subprocess.run(["bash", "-c", script, sys.executable, str(xor)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "raise the limit" in done.stderr, done


ESCAPES = "\x1b]0;mine\x07\x1b[2J"


@pytest.mark.slow
def test_workers_have_streams_where_there_are_none(tmp_path):
    """A worker without standard error ends before it begins."""
    plan = tmp_path / "plan.toml"
    plan.write_text('function = "train"\n[fixed]\ndata = "parity:d=3,n=4"\nsteps = 2\n[grid]\nwidth = [2, 3]\n')
    for how in ("<&- 2>&-", "<&- >&- 2>&-"):
        done = through(how, "sweep", plan, "--store", tmp_path / f"store{len(how)}", "--workers", 1)
        assert done.returncode == 0 and len(Store(tmp_path / f"store{len(how)}")) == 2, done


def test_names_do_not_steer_a_terminal(tmp_path):
    """Neither those of files nor those that files hold."""
    data, saved = tmp_path / f"a{ESCAPES}\nb.csv", tmp_path / "cert.json"
    data.write_text(XOR)
    status, out, said = run("data", data, "--out", tmp_path / f"c{ESCAPES}.csv")
    assert status == 0 and said.count("\n") == 1 and "\x1b" not in said + out
    assert run("margin", data, "--kind", "linear", "--save", saved)[0] == 0
    status, out, said = run("report", saved, "--out", tmp_path / "page.html")
    assert status == 0 and out.count("\n") == 1 and "\x1b" not in said + out


def test_the_checker_alone_says_one_sentence_of_words_that_it_does_not_know(capsys):
    assert checker.main(["a", "b", f"--{ESCAPES}\nc"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "\x1b" not in said and said.startswith("widemargin.verify: unrecognized")


@pytest.mark.slow
def test_workers_do_not_import_from_the_working_folder(tmp_path):
    """The command does not, and Python starts processes by -c and -m, which do."""
    (tmp_path / "multiprocessing.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise ImportError")
    (tmp_path / "plan.toml").write_text(
        'function = "margin"\nname = "n"\n[fixed]\nkind = "linear"\ndata = "dyadic:d=2"\n'
    )
    source = os.path.dirname(os.path.dirname(widemargin.__file__))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "widemargin").write_text("import sys\nfrom widemargin.__main__ import main\nsys.exit(main())\n")
    words = [sys.executable, "bin/widemargin", "sweep", "plan.toml", "--store", "store", "--workers", "1"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | {"PYTHONPATH": source}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and "1 of 1 run" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_two_signals_while_modules_are_imported_are_one_line(monkeypatch):
    """The second came between the line of the first and the end."""
    asked, said = door._CtrlC(), []

    def say(line):
        said.append(line)
        if len(said) < 5:
            asked(signal.SIGTERM, None)

    monkeypatch.setattr(door, "_say", say)
    monkeypatch.setattr(door.os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        asked(signal.SIGINT, None)
    assert (said, ended.value.code) == (["interrupted"], 130)


def test_a_library_that_still_computes_is_not_waited_for():
    """It would come back to a Python that has ended, and abort with words of its own."""
    program = f"""
import atexit, signal, sys, threading, time
import widemargin.__main__ as door
from widemargin import cli
atexit.register(print, "closed")
threading.Thread(target=time.sleep, args=(600,), name={door.LEFT!r}).start()
cli.main = lambda: signal.raise_signal(signal.SIGINT)
sys.exit(door.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "closed\n", "interrupted\n")


def test_the_checker_alone_is_interrupted_while_it_is_imported(tmp_path):
    """`python -m` imports its package before anything of it runs: Ctrl-C there ended in a traceback."""
    (tmp_path / "numpy.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    source = Path(widemargin.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "widemargin.verify", "cert.json", "data.npz"], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(source)])},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"])
def test_no_variable_makes_a_terminal_of_a_pipe(name, xor, monkeypatch):
    """rich would draw a moving line into it."""
    monkeypatch.setenv(name, "1")
    status, out, err = run("margin", xor, "--kind", "f2")
    assert status == 0 and "\x1b" not in out + err


def test_csv_steers_no_terminal_and_is_exact_elsewhere(tmp_path, monkeypatch):
    """A file or a pipe gets every text as it is; a terminal would obey it."""
    evil = "=1+1\x1b]0;title\x07\nsecond, line"
    store = Store(tmp_path / "store")
    store.add("s", "f", "1", 0, [Run("a", {"x": evil}, 0)], [{"y": 1.0}], 0.1)
    store.close()
    sql = "select x, y from runs"
    out = run("query", tmp_path / "store", sql, "--csv")[1]
    assert list(csv.reader(io.StringIO(out, newline=""))) == [["x", "y"], [evil, "1.0"]]
    monkeypatch.setattr("widemargin.cli.sweep.is_terminal", lambda stream: True)
    out = run("query", tmp_path / "store", sql, "--csv")[1]
    assert "\x1b" not in out and "=1+1?]0;title??second, line" in out


def test_demo_ends_at_ctrl_c_with_the_certificates_there_are(tmp_path, monkeypatch):
    """It went on for 5 s, with pictures and a page of what there was."""
    solve = cli.demo.solve
    monkeypatch.setattr(cli.demo, "DEMO", SMALL)
    monkeypatch.setattr(cli.demo, "solve", lambda *args: replace(solve(*args), status="interrupted"))
    status, _, said = run("demo", "--out", tmp_path)
    assert status == 130 and said.endswith("interrupted\n")
    assert os.listdir(tmp_path) == ["f1.json.gz"]
