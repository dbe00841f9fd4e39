"""`widemargin play`: the loopback only, the token, no path but the page's own, bounded bodies, and a clean end."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from widemargin import Dataset, flows, play, verify
from widemargin.cli import main
from widemargin.types import InputError


def asked(server, path, method="GET", body=None, host=None, headers=None):
    """Status and content of one request."""
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    if body is not None and "Content-Length" not in (headers or {}):
        connection.putheader("Content-Length", str(len(body)))
    for name, value in (headers or {}).items():
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def test_the_page_is_there_and_only_behind_its_token(served):
    token = served.token
    assert served.server_address[0] == "127.0.0.1"
    with play.Server() as other:
        assert len(token) > 20 and other.token != token
    status, html = asked(served, f"/{token}/")
    assert status == 200 and b'data-server="yes"' in html
    assert asked(served, f"/{token}/main.js")[0] == 200
    for path in ("/", "/main.js", f"/{token[:-1]}/", f"/{token}x/", "//", "/%2e%2e/", f"/{token.lower()}/"):
        assert asked(served, path)[0] == 403, path
    assert asked(served, f"/{token}/", host="evil.example")[0] == 403  # a name that was made to point here


@pytest.mark.parametrize(
    "path",
    [
        "../server.py",
        "%2e%2e/server.py",
        "..%2fserver.py",
        "page/main.js",
        "/etc/passwd",
        "./main.js",
        "main.js/",
        "\\main.js",
    ],
)
def test_no_path_outside_the_page(served, path):
    assert asked(served, f"/{served.token}/{path}")[0] == 404


def test_a_certificate_from_python(served):
    points = [[1, 1, 1], [-1, -1, 1], [1, -1, -1], [-1, 1, -1]]
    where = f"/{served.token}/certify"
    status, text = asked(served, where, "POST", json.dumps({"points": points, "bias": False}).encode())
    assert status == 200
    rows = np.array(points, dtype=float)
    assert verify.check(json.loads(text), rows[:, :2], rows[:, 2]).ok
    assert asked(served, f"/{served.token}/other", "POST", b"{}")[0] == 404
    assert asked(served, where, "POST", b"", headers={"Content-Length": "x"})[0] == 411
    assert asked(served, where, "POST", b"", headers={"Content-Length": "64001"})[0] == 413
    assert asked(served, where, "POST", b"", headers={"Content-Length": "9" * 5000})[0] == 413  # no integer for Python
    assert asked(served, where, "POST", b"{}", headers={"Transfer-Encoding": "chunked", "Content-Length": ""})[0] == 411
    assert asked(served, where, "POST", b"{}", headers={"Origin": "http://evil.example"})[0] == 403
    own = f"http://127.0.0.1:{served.server_address[1]}"
    assert asked(served, where, "POST", b"{}", headers={"Origin": own})[0] == 400  # the page itself; the body is empty
    assert asked(served, "/wrong/certify", "POST", b"{}")[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'{"points": [], "bias": true}', b'{"points": [[1, 2, 3]], "bias": true}',
        b'{"points": [[1, 2, 1]], "bias": 1}',
        b'{"points": [[1, 2]], "bias": true}', b'{"points": [[1e9, 2, 1]], "bias": true}', b'{"points": "x", "bias": true}',
        b'{"points": [[NaN, 2, 1]], "bias": true}', json.dumps({"points": [[1, 2, 1]] * 401, "bias": True}).encode(),
    ],
)  # fmt: skip
def test_bad_requests_are_answered_with_a_sentence(served, body):
    status, said = asked(served, f"/{served.token}/certify", "POST", body)
    assert status == 400 and said


def beginning(server, text):
    """A connection that has sent the beginning of a request."""
    connection = socket.create_connection(server.server_address, timeout=60)
    connection.sendall(text)
    return connection


def test_two_hundred_at_once_beside_clients_that_never_finish(served):
    """Pages do not wait for each other, nor for requests that hang."""
    slow = [beginning(served, b"GET /x HTTP/1.1\r\nX: ") for _ in range(50)]
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(asked(served, f"/{served.token}/check.js")[0])) for _ in range(200)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [200] * 200
    for one in slow:
        one.close()


def test_a_request_that_does_not_arrive_is_cut_off(monkeypatch):
    monkeypatch.setattr(play.server, "ARRIVAL", 0.2)
    with play.Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        head = f"POST /{server.token}/certify HTTP/1.1\r\nHost: 127.0.0.1:{server.server_address[1]}\r\n"
        for text in ("GET /", head, head + "Content-Length: 100\r\n\r\n{"):
            with beginning(server, text.encode()) as connection:
                while connection.recv(1000):  # its end, after what may be said about it
                    pass
        assert asked(server, f"/{server.token}/")[0] == 200
        server.shutdown()
    assert not server.arriving


def test_what_nobody_waits_for_is_not_solved(monkeypatch):
    """A page with many points asks again at every change: certificates of the old ones would keep the new one waiting."""
    solved = []
    monkeypatch.setattr(play.server, "certified", lambda data, bias: (solved.append(data.n), "{}")[1])
    with play.Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = f"/{server.token}/certify"
        with server.solving:  # as if another certificate were made
            for n in (1, 2):
                body = json.dumps({"points": [[1, 2, 1]] * n, "bias": True})
                head = f"POST {where} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_address[1]}\r\n"
                beginning(server, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()).close()
            while sum(one.name.endswith("(process_request_thread)") for one in threading.enumerate()) < 2:
                time.sleep(0.01)
        assert asked(server, where, "POST", json.dumps({"points": [[1, 2, 1]] * 3, "bias": True}).encode())[0] == 200
        server.shutdown()
    assert solved == [3]


def test_a_port_that_is_taken(served, capsys):
    port = served.server_address[1]
    with pytest.raises(InputError, match=f"port {port} cannot be used"):
        play.Server(port)
    assert main(["play", "--port", str(port), "--no-browser"]) == 2
    assert "cannot be used" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_it_cleanly(tmp_path):
    file = tmp_path / "points.csv"
    file.write_text("x1,x2,label\n0.5,1.26,1\n-1,2,-1\n", encoding="utf-8")
    command = [sys.executable, "-m", "widemargin", "play", "--no-browser", "--data", str(file)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    address = running.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/#v=1&bias=0&p=32_81p\.-64_128m", address)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0 and out == "" and "Traceback" not in err and "ended" in err


def test_data_that_is_not_of_the_plane(tmp_path, capsys):
    assert main(["play", "--no-browser", "--data", "parity:d=4,n=8"]) == 2
    assert "points of the plane" in capsys.readouterr().err
    for X, said in (
        (np.ones((401, 2)), "more than the playground takes"),
        (np.full((2, 2), 1e3), "scale the points down"),
    ):
        with pytest.raises(InputError, match=said):
            play.link(Dataset(X, np.ones(len(X))))


def test_the_page_as_one_file(tmp_path, capsys):
    file = tmp_path / "page.html"
    assert main(["play", "--out", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert file.stat().st_size < 400_000
    assert not re.search(r"(src|href)=\"(?!data:|#)", text) and "import.meta" not in text
    assert main(["play", "--out", str(tmp_path / "no" / "page.html")]) == 2
    assert "page.html" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--data", "--run"])
def test_a_page_in_a_file_does_not_drop_what_was_given(option, tmp_path, capsys):
    """It was written as if nothing had been asked for, also where there was no such file."""
    page = tmp_path / "page.html"
    assert main(["play", option, str(tmp_path / "none"), "--out", str(page)]) == 2
    assert f"leave {option} out" in capsys.readouterr().err and not page.exists()


def test_runs_that_cannot_be_replayed(tmp_path, capsys):
    data = Dataset([[1.0, 0.5], [-1.0, 0.25]], [1, -1])
    flows.train(data, flows.TwoLayer(2, 4), flows.GD(), stop=3, keep=tmp_path / "bare")
    flows.train(data, flows.Scalar(2, 4), flows.GD(), stop=3, keep=tmp_path / "other", record=["weights"])
    wide = Dataset(np.eye(3), [1, -1, 1])
    flows.train(wide, flows.TwoLayer(3, 4), flows.GD(), stop=3, keep=tmp_path / "wide", record=["weights"])
    for name, said in (("bare", "--weights"), ("other", "two-layer ReLU"), ("wide", "points of the plane")):
        with pytest.raises(InputError, match=said):
            play.replay(tmp_path / name)
    assert main(["play", "--no-browser", "--run", str(tmp_path / "none")]) == 2
    assert main(["play", "--no-browser", "--run", str(tmp_path / "bare"), "--data", "x.csv"]) == 2
    assert "widemargin: " in capsys.readouterr().err
