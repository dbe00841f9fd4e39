"""Every command of the parser with any of its options, any value and any kind of file: an answer or one sentence.

What a command is asked is drawn from the parser itself, so that an option that is new there is tried, too; a command that is new
needs a line in ENDINGS.
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import socketserver
import stat
import sys
import threading
import webbrowser

import numpy as np
import pytest
import torch
from harm import VALUES, check_memory, command, draw, ends, harmed_bytes, harmed_value, share, snapshot

from widemargin import cli, kinds, margins, papers, sweep
from widemargin.cli import demo
from widemargin.monitor import store as monitors
from widemargin.play import Server, server
from widemargin.types import Dataset

# What each call ends with: it makes it short, whatever was asked before.
ENDINGS = {
    "margin": ["--time-limit", "0.1"],
    "verify": [],
    "fit": ["--time-limit", "0.1", "--weight-decay", "0.1"],
    "gap": ["--time-limit", "0.1", "--weight-decay", "0.1"],
    "train": ["--width", "4", "--steps", "3", "--trials", "2", "--points", "5", "--time-limit", "0.1"],
    "plot": [],
    "watch": ["--once"],
    "bound": ["--time-limit", "0.05"],
    "check": [],
    "theorems": [],
    "reproduce": ["--jobs", "1"],
    "sweep": ["--dry-run"],
    "query": ["--time-limit", "5"],
    "report": ["--time-limit", "0.05"],
    "play": ["--no-browser"],
    "data": [],
    "demo": [],
}
WRITTEN = {"out", "save", "plot", "store"}  # options that name what is written
SPECS = ["parity:d=4,n=8", "dyadic:d=2", "digits:n=12", "disks:d=2,n=9", "parity:d=1000000000,n=2", "parity:n=-1",
         "dyadic:d=60", "mt:d=2,n=1e99", "clusters:k=0", "cifar:path=.", "collapse:d=3,r=7", "nothing:x=1", ":", "parity:",
         "parity:d==", "a:b:c"]  # fmt: skip
NUMBERS = [
    "1e-3:1:3",
    "2:1:4",
    "0",
    "1",
    "2",
    "3",
    "7",
    "0.5",
    "1e-3",
    "0.99",
    "-1",
    "1e300",
    "1e-300",
    "nan",
    "inf",
    "1e999",
    "٣",
    "1_0",
    "0x10",
    "1000000",
    "1000000000000",
]
SQL = ["select * from runs", "select count(*) from runs", "select 1; select 2", "pragma user_version", "select"]
WORDS = [*SQL, *kinds.KINDS, "list", "UH", "CB-22", "mt-2", "list all", "y", "train", "--", "-x"]
# Words that some arguments take.
NAMES = {
    "sql": SQL,
    "kind": [name for name, row in kinds.KINDS.items() if row.room == "margins" and not row.needs],
    "ids": ["list", "all", "UH", "cb", "mt-2", "UH-8", "CB-22", "bn-1", "lr-1", "LR-15", "MT"],
    "theorem": ["UH-8", "CB-22", "MT-7", "LR-15", "no-1"],
    "activation": ["relu", "leaky", "leaky:0.3", "srelu"],
    "option": ["lr=0.1", "lr=x", "until=time=0.5", "a=b", "=", "lr="],
    "until": ["time=0.5", "error=0", "loss<0.1", "x"],
    "label": ["y", "a", "X", ""],
}


# The kinds of file that are meant for an argument; of the others each is tried, too.
MEANT = {
    "data": ["points.npz", "points.csv", "plain.npy", "targets.npz"],
    "test": ["points.npz", "points.csv"],
    "spec": ["points.npz", "points.csv", "plain.npy"],
    "certificate": ["f1.json", "linear.json.gz"],
    "run_folder": ["run", "records"],
    "model": ["net.pt", "run"],
    "store": ["store"],
    "file": ["plan.toml"],
}


def parsers():
    """The parser of each command, by name."""
    (found,) = [one for one in cli.parser()._actions if isinstance(one, argparse._SubParsersAction)]
    return found.choices


def test_every_command_is_tried():
    assert set(parsers()) == set(ENDINGS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file or folder of every kind that a command reads or writes."""
    folder = tmp_path_factory.mktemp("kinds")
    data = Dataset([[1.0, 2.0], [2.0, -1.0], [-1.0, 0.5], [0.5, 0.5]], [1, -1, 1, -1])
    np.savez(folder / "points.npz", X=data.X, y=data.y)
    np.savez(folder / "targets.npz", X=data.X, y=np.arange(8.0).reshape(4, 2))
    np.save(folder / "plain.npy", data.X)
    np.save(folder / "plain_y.npy", data.y)
    (folder / "points.csv").write_text("a,b,y\n1,2,1\n2,-1,-1\n-1,0.5,1\n0.5,0.5,-1\n")
    margins.f1(data).save(folder / "f1.json")
    margins.linear(data).save(folder / "linear.json.gz")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    torch.save(net.state_dict(), folder / "net.pt")
    words = ["train", folder / "points.npz", "--width", "6", "--steps", "20", "--weights", "--points", "6"]
    assert command(*words, "--out", folder / "run")[0] == 0
    (folder / "plan.toml").write_text(
        'function = "margin"\nname = "n"\n[fixed]\nkind = "linear"\n[grid]\ndata = ["dyadic:d=2"]\n'
    )
    sweep.sweep(sweep.Sweep.load(folder / "plan.toml"), folder / "store", engine="inline")
    from test_crashes import CONFIG, record

    one = monitors.Store(folder / "records", CONFIG)
    one.append([record(step) for step in range(4)])
    one.close()
    return folder


def a_file(rng, files, scratch, meant=()):
    """One of them, whole or damaged, or something that is no such file."""
    how = rng.random()
    if how < 0.05:
        return rng.choice(
            [files, scratch / "none", scratch / "pipe", scratch / "empty", "/dev/zero", "/proc/self/mem", "/etc", "-"]
        )
    path = rng.choice(sorted(files.iterdir()))
    if meant and rng.random() < 0.8:
        path = files / rng.choice(meant)
    if how < 0.75:
        return path
    copied = scratch / f"{rng.randrange(1000)}-{path.name}"
    if copied.exists():
        return copied
    if path.is_dir():
        shutil.copytree(path, copied)
        harmed = rng.choice([one for one in sorted(copied.rglob("*")) if one.is_file()])
        harmed.write_bytes(harmed_bytes(rng, harmed.read_bytes()))
    elif path.suffix == ".json" and rng.random() < 0.5:
        copied.write_text(json.dumps(harmed_value(rng, json.loads(path.read_text()))))
    else:
        copied.write_bytes(harmed_bytes(rng, path.read_bytes()))
    return copied


def to_write(rng, scratch):
    ending = rng.choice(["", ".json", ".json.gz", ".npz", ".csv", ".npy", ".png", ".svg", ".html", ".pdf", ".txt", "/"])
    if rng.random() < 0.5:
        return f"made{ending}"
    return rng.choice(
        [f"made{ending}", f"made{ending}", scratch / f"made{ending}", scratch / "no" / f"made{ending}", scratch, scratch / "pipe",
         scratch / "empty", "", ".", "..", "a" * 3000, "\x00", "\ud800", "/proc/x", "made\n"]
    )  # fmt: skip


def taken(action):
    """The numbers that the parser takes for this option."""
    found = []
    for text in NUMBERS:
        with contextlib.suppress(argparse.ArgumentTypeError, ValueError):
            action.type(text)
            found.append(text)
    return found or NUMBERS


def a_value(rng, action, files, scratch):
    if action.dest in WRITTEN and action.option_strings:
        return to_write(rng, scratch)
    if action.choices is not None and rng.random() < 0.9:
        return rng.choice(sorted(map(str, action.choices)))
    meant = MEANT.get(action.dest, ())
    if action.dest in NAMES and rng.random() < 0.9:
        return rng.choice(NAMES[action.dest])
    if action.type is not None and rng.random() < 0.85:
        return rng.choice(taken(action))
    kind = rng.choices(["file", "spec", "word", "number", "any"], [20, 3, 1, 1, 1] if meant else [1, 1, 4, 4, 4])[0]
    if kind == "file" or action.dest == "things":
        return a_file(rng, files, scratch, meant)
    return str(rng.choice({"spec": SPECS, "word": WORDS, "number": NUMBERS, "any": VALUES}[kind]))


def asked(rng, name, files, scratch):
    """The words of one call."""
    actions = [one for one in parsers()[name]._actions if one.dest != "help"]
    words = [name]
    for one in actions:
        if not one.option_strings:
            most = {None: 1, "?": int(rng.random() < 0.85), "*": rng.randrange(3), "+": rng.choice((1, 1, 2, 3))}[
                one.nargs
            ]
            words += [a_value(rng, one, files, scratch) for _ in range(most)]
    if rng.random() < 0.03:
        words = words[:-1] if rng.random() < 0.5 else [*words, "more"]
    options = [one for one in actions if one.option_strings]
    for one in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 2, 3, 5)))):
        words.append(rng.choice(one.option_strings))
        if one.nargs != 0:
            words += [a_value(rng, one, files, scratch) for _ in range(1 if one.nargs is None else rng.randrange(1, 3))]
    required = [
        word for one in options if one.required for word in (one.option_strings[0], a_value(rng, one, files, scratch))
    ]
    if name == "watch":  # it waits for a folder for ever unless it is told --once, which is no option behind --
        words = [word for word in words if word != "--"]
    ending = ENDINGS[name][:-2] if "--path" in words else ENDINGS[name]
    return [*words, *required, *ending]


@pytest.fixture
def quiet(monkeypatch):
    """No browser, no server that goes on, small examples."""
    monkeypatch.setattr(webbrowser, "open", lambda *_: True)
    monkeypatch.setattr(socketserver.BaseServer, "serve_forever", lambda *_, **__: None)
    monkeypatch.setattr(papers, "run", lambda *_, **__: [])
    monkeypatch.setattr(demo, "DEMO", "parity:d=3,n=6,seed=0")


# Calls of each, where 2,000 inputs are meant in all.
COUNTS = {
    "margin": 60,
    "fit": 30,
    "gap": 30,
    "train": 30,
    "verify": 28,
    "bound": 6,
    "report": 12,
    "check": 8,
    "plot": 8,
    "demo": 1,
    "reproduce": 30,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_any_words(name, files, tmp_path, monkeypatch, quiet):
    rng, before = draw("words", name), snapshot(files)
    for _ in range(share(COUNTS.get(name, 20))):
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        os.mkfifo(scratch / "pipe")
        (scratch / "empty").touch()
        monkeypatch.chdir(scratch)
        words = asked(rng, name, files, scratch)
        command(*words)
        assert stat.S_ISFIFO((scratch / "pipe").stat().st_mode), words
        assert not list(scratch.rglob("*.tmp")), words
        shutil.rmtree(scratch)
    after = snapshot(files)
    assert {path: after.get(path) for path in before} == before
    check_memory()


def test_any_request_to_the_playground(monkeypatch):
    """It is answered, or the connection is closed; the server goes on, and nothing is printed."""
    rng, wrong = draw("requests"), []
    monkeypatch.setattr(server, "SECONDS", 0.05)
    monkeypatch.setattr(server._Handler, "timeout", 5)
    monkeypatch.setattr(socketserver.BaseServer, "handle_error", lambda *_: wrong.append(sys.exc_info()[1]))
    body = {"points": [[1.0, 2.0, 1], [2.0, -1.0, -1], [0.5, 0.5, -1]], "bias": True}
    with Server() as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        port = one.server_address[1]
        for _ in range(share(40)):
            content = json.dumps(harmed_value(rng, body)).encode()
            content = rng.choice(
                [
                    content,
                    content,
                    harmed_bytes(rng, content),
                    b"[" * 60_000,
                    b'{"points": [[1' + b"0" * 400 + b",1,1]]}",
                ]
            )
            length = rng.choice([len(content)] * 6 + ["", -1, "\u00b2", 10**9, "x", 0])
            method, path = (
                rng.choice(["POST", "POST", "GET", "HEAD", "PUT", "x"]),
                rng.choice(["certify"] * 4 + ["", "run.json", "../x", "%00", "?"]),
            )
            token = rng.choice([one.token] * 5 + ["", "x", "\u00e9"])
            lines = [f"{method} /{token}/{path} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
            head = "\r\n".join([*lines, f"Content-Length: {length}", "", ""])
            request = head.encode("latin-1") + content
            if rng.random() < 0.2:
                request = harmed_bytes(rng, request)
            with (
                socket.create_connection(("127.0.0.1", port), 60) as line,
                ends(),
                contextlib.suppress(OSError),  # closed by the other side
            ):
                line.sendall(request)
                line.shutdown(socket.SHUT_WR)
                while line.recv(1 << 16):
                    pass
        with socket.create_connection(("127.0.0.1", port), 60) as line:
            line.sendall(f"GET /{one.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
            assert b" 200 " in line.recv(100)
        one.shutdown()
    assert not wrong, wrong
    check_memory()
