"""What a page says of a proof: it checks again what is small, and says of the rest that it was not checked again."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from widemargin import data as datasets
from widemargin import kinds
from widemargin import verify as exact
from widemargin.data.files import partner
from widemargin.dataset import LABEL_COLUMNS
from widemargin.types import Certificate, Dataset, InputError

from .section import Html, badge

PROOF = 1 << 18  # characters of a proof that is checked again, a second or so
POINTS, NUMBERS = 128, 4096  # points, and numbers in them, of such a certificate
WORK = 1 << 22  # numbers that a certificate may ask the checker to draw
MOST = 10**6  # numbers in data that a page draws again from its name
FILE = 1 << 26  # bytes of files of data that a page looks into: larger ones not at all, others as often as this allows


class Checked(NamedTuple):
    """Whether a bound is proved: True and False were found by the checker, None is what the file says of itself."""

    holds: bool | None
    words: str

    @property
    def refused(self) -> bool:
        return self.holds is False and self.words.startswith("REFUSED")

    @property
    def badge(self) -> Html:
        return badge(self.holds, self.words)


def recheck(cert: Certificate, data: Dataset | None) -> Checked:
    """Check a certificate again if it and its data are small and here."""
    if not cert.proved:
        return Checked(False, "not proved")
    why = _too_much(cert, data)
    if why or data is None:
        return Checked(None, f"not re-checked ({why})")
    try:
        verdict = cert.verify(data)
    except MemoryError:
        return Checked(None, "not re-checked (too large for this machine)")
    if verdict.ok:
        return Checked(True, "proved, re-checked")
    if verdict.answer == exact.REFUSED:
        return Checked(False, f"REFUSED by the checker: {verdict.failed}")
    return Checked(None, f"checked: {verdict.answer}")


def _too_much(cert: Certificate, data: Dataset | None) -> str:
    """Why a certificate is not checked again; empty where it is."""
    if data is None:
        return "its data is not here"
    if not cert.proof or cert.n > POINTS or cert.n * (cert.d + 1) > NUMBERS:
        return "too large for a page"
    drawn = cert.extra.get("width", 0) * cert.d + cert.extra.get("samples", 0) * (cert.n + cert.d)
    if drawn > WORK or len(json.dumps(cert.payload())) > PROOF:
        return "too large for a page"
    return ""


def load_data(cert: Certificate) -> Dataset | None:
    """The data of a certificate, where its name still leads to it: with labels, or with numbers as targets.

    The name was written by whoever wrote the file, so that nothing large is drawn, and nothing large is read.
    """
    name = cert.data_name
    several = kinds.KINDS[cert.kind].targets == "classes" if cert.kind in kinds.KINDS else False
    cost = _cost(name)
    if cert.n * cert.d > MOST or cost > FILE:
        return None
    known = cert.data_called.get("standardized")
    columns = dict.fromkeys((cert.data_called.get("label"), None, *_columns(name)))
    tries = itertools.product(columns, (False,) if several else (False, True))
    for column, targets in itertools.islice(tries, max(2, int(FILE // max(cost, 1)))):
        with contextlib.suppress(InputError, OSError, ValueError, MemoryError):
            data = datasets.load(name, column, multiclass=several, targets=targets)
            data = data.rescale(known["mean"], known["scale"]) if known else data
            if data.sha256() == cert.data_sha256:
                return data
    return None


def chosen(certs: Sequence[Certificate], data: Dataset | None) -> dict[str, str]:
    """What a certificate chose of its data, in words: bounds are then not those of the points and labels as the file has them."""
    said: dict[str, str] = {}
    if data is None:
        return said
    if data.standardized is not None:
        said["points are"] = "standardised"
    if data.label and [name for name in (data.label, *data.columns) if name in LABEL_COLUMNS] != [data.label]:
        said["labels are"] = f"column {data.label}"
    if any(cert.extra.get("loss") == "squared" for cert in certs) and _are_numbers(data.classes):
        said["targets are"] = "-1 and +1 in place of {} and {}".format(*data.classes)
    return said


def _are_numbers(classes: Sequence[Any]) -> bool:
    """Whether two numbers of a file became -1 and +1."""
    numbers = all(isinstance(label, int | float) and not isinstance(label, bool) for label in classes)
    return numbers and len(classes) == 2 and tuple(classes) != (-1, 1)


def _cost(name: str) -> float:
    """Bytes of the files that data of this name are read from; 0 for a spec of few numbers, without a path; else infinity."""
    source, _, rest = name.partition(":")
    if source not in datasets.SOURCES:
        files = name.split(",") if name.lower().endswith(".npy") and not os.path.isfile(name) else [name]
        with contextlib.suppress(OSError, ValueError):
            files += [str(partner(file)) for file in files if len(files) == 1 and file.lower().endswith(".npy")]
            return sum(os.path.getsize(file) if os.path.isfile(file) else math.inf for file in files)
        return math.inf
    # Spaces are left out, as where the data are drawn: " n" is n.
    given = {key.strip(): value.strip() for key, _, value in (part.partition("=") for part in rest.split(","))}
    if "path" in given or source in ("cifar", "mnist"):
        return math.inf
    sizes = [given.get(key, "1") for key in ("n", "d", "n1", "n2", "k", "r", "units", "sample")]
    if not all(size.isascii() and size.isdecimal() and len(size) < 10 for size in sizes):
        return math.inf
    count, d = math.prod(max(1, int(size)) for size in sizes), int(given.get("d", "1"))
    if given.get("marginal") == "full":  # all vertices of the cube
        count *= 2 ** min(d, 100)
    return 0.0 if count <= MOST and d <= 10**3 else math.inf


def _columns(name: str) -> list[str]:
    """Columns of a small CSV file: older certificates do not keep which of them holds the labels."""
    if not name.lower().endswith(".csv"):
        return []
    with contextlib.suppress(OSError, ValueError, csv.Error), open(name, newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file), [])
        return names if len(names) <= 20 else []
    return []


def foreign(config: Mapping[str, Any], cert: Certificate) -> str:
    """Why a certificate says nothing about a run; empty where its bound holds for every network there."""
    activation = config["net"].get("activation", "relu")
    if cert.kind != "f1":
        return f"the certificate is of kind {cert.kind}, not f1"
    if [cert.data_sha256] != config["data"]["sha256"]:
        return f"the certificate is of other data, {cert.data_name}"
    if bool(cert.bias) != bool(config["bias"]):
        return f"the certificate is {_with(cert.bias)} a bias and the run {_with(config['bias'])}"
    if cert.activation != activation:
        return f"the certificate is of activation {cert.activation} and the run of {activation}"
    return ""


def _with(bias: bool) -> str:
    return "with" if bias else "without"
