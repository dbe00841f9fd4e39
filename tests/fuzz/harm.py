"""Harm done to files, from a seed: to their bytes, and to what they hold.

The number of inputs is 2,000 in all; the environment variable WIDEMARGIN_FUZZ sets another one (50000, say), and
WIDEMARGIN_FUZZ_SEED another seed. A file named by WIDEMARGIN_FUZZ_COUNT gets a line with how many there were
(`benchmarks/faults.py` spreads them over processes).
"""

import contextlib
import copy
import io
import math
import os
import random
import resource
import signal
import traceback
import zlib

from widemargin import cli

INPUTS = int(os.environ.get("WIDEMARGIN_FUZZ", "2000"))
SEED = int(os.environ.get("WIDEMARGIN_FUZZ_SEED", "0"))
HANGS = 120  # seconds after which an input counts as one that never ends; the slowest takes a few
MEMORY = 2 << 30  # bytes that this process may have come to need

VALUES = [
    None, True, False, 0, 1, -1, 2, 7, 10**6, 10**12, 10**30, -(10**400), 0.5, -0.0, 1e308, -1e308, 5e-324, math.nan, math.inf,
    "", "x", "0", "nan", "a" * 3000, "\ud800", "\x00", "<a href='http://x'>y</a>", "@plus", "%{x}", "../../etc/passwd",
    [], [[]], [0], [None], [[0.5]], [[1, 2], [3]], ["x"], {}, {"a": 1}, {"lower": 0, "upper": 1}, {"type": "norm"},
]  # fmt: skip


def count(inputs):
    """So many more were tried."""
    if where := os.environ.get("WIDEMARGIN_FUZZ_COUNT"):
        with open(where, "a") as file:
            file.write(f"{inputs}\n")


def share(part, least=1):
    """So many inputs, where `part` of 2,000 are meant."""
    inputs = max(least, round(part * INPUTS / 2000))
    count(inputs)
    return inputs


def draw(*words):
    """A generator that depends on these words and the seed alone."""
    return random.Random(zlib.crc32(" ".join(map(str, (SEED, *words))).encode()))


def places(value, where=()):
    """Every place in a nested value, the whole first."""
    yield where
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        if not (isinstance(one, int | float) and isinstance(value, list) and key > 2):  # of long lists of numbers a few
            yield from places(one, (*where, key))


def deep(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def harmed_value(rng, value, also=()):
    """A copy with one to three places changed: another value, gone, twice, longer, deeper, a neighbour's."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        spots = [where for where in places(value) if where]
        if not spots:
            return rng.choice(VALUES)
        # Places high up are as likely as the many below.
        depth = rng.choice(sorted({len(where) for where in spots}))
        *path, key = rng.choice([where for where in spots if len(where) == depth])
        parent = value
        for step in path:
            parent = parent[step]
        how = rng.random()
        if how < 0.55:
            parent[key] = copy.deepcopy(rng.choice([*VALUES, *also]))
        elif how < 0.7:
            del parent[key]
        elif how < 0.78 and isinstance(parent, list):
            with contextlib.suppress(RecursionError):  # what is there may be deep by now
                parent.insert(key, copy.deepcopy(parent[key]))
        elif how < 0.86 and isinstance(parent[key], list):
            parent[key] = parent[key] * rng.choice((0, 2, 3))
        elif how < 0.88:
            parent[key] = deep(rng.choice((30, 400)))
        elif how < 0.94 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
            with contextlib.suppress(OverflowError):  # an integer beyond all floats
                parent[key] = parent[key] * rng.choice((-1, 0, 2, 1e9, 1.0000001, -1e-9))
        else:
            other = rng.choice(spots)
            found = value
            with contextlib.suppress(KeyError, IndexError, TypeError, RecursionError):
                for step in other:
                    found = found[step]
                parent[key] = copy.deepcopy(found)
    return value


def harmed_bytes(rng, content):
    """One to four times: bits flipped, bytes cut, put in, doubled, zeroed, or all after a place lost."""
    content = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(content) + 1) if content else 0
        some = min(len(content) - at, 1 << rng.randrange(8))
        how = rng.randrange(6)
        if how == 0 and some:
            content[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del content[at : at + some]
        elif how == 2:
            content[at:at] = bytes(rng.randrange(256) for _ in range(1 << rng.randrange(6)))
        elif how == 3:
            content[at:at] = content[at : at + some]
        elif how == 4:
            content[at : at + some] = bytes(some)
        else:
            del content[at:]
    return bytes(content)


class Hangs(BaseException):
    """No exception that a command would take for its own: a TimeoutError is an OSError."""


@contextlib.contextmanager
def ends():
    """An error where what is inside does not end."""

    def late(*_):
        raise Hangs("this does not end")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(HANGS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def command(*argv):
    """Exit status and what was said; an AssertionError where it ends in anything but an answer or one sentence."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), ends():
        try:
            status = cli.main(list(map(str, argv)))
        except SystemExit as end:
            status = end.code or 0
        except BaseException as error:
            raise AssertionError(f"{argv}: {''.join(traceback.format_exception(error))[-3000:]}") from None
    said = err.getvalue()
    assert "Traceback" not in said, (argv, said)
    assert status in (0, 1, 2, 3, 4), (argv, status, said)
    if status == 2:
        last = said.rstrip("\n").splitlines()[-1]
        assert last.startswith("widemargin: ") and len(last) < 3000, (argv, said)
    return status, out.getvalue(), said


def snapshot(folder):
    """Names and contents of all files below a folder."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_memory():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert used < MEMORY, f"{used >> 20} MB"
