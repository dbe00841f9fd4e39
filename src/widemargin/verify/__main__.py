"""`python -m widemargin.verify CERT DATA`: the verdict on a certificate, where only numpy is installed.

Exit status: 0 proved exactly, 1 refused, 2 a file that cannot be read, 3 holds with a probability, 4 not proved.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from .files import load, read_data
from .frame import EXIT, check, data_hash, restored


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m widemargin.verify",
        description="Re-check a saved certificate in exact arithmetic.",
        epilog="exit status: 0 proved exactly, 1 refused, 2 bad input, 3 holds with a probability, 4 not proved",
    )
    parser.add_argument("certificate", metavar="CERT", help="a file written by --save")
    parser.add_argument("data", metavar="DATA", help="the data it was made for, .npz or .csv")
    parser.add_argument("--json", action="store_true", help="print the verdict as one object")
    options = parser.parse_args(argv)
    try:
        payload = load(options.certificate)
        kind, loss, made_for, label = _named(payload)
        X, y = read_data(options.data, kind, loss, label)
        if loss == "squared" and data_hash(X, y) != made_for:  # or for these labels as -1 and +1
            other = read_data(options.data, kind, label=label)
            X, y = other if data_hash(*other) == made_for else (X, y)
    except ValueError as error:
        print(f"widemargin.verify: {error}", file=sys.stderr)
        return 2
    verdict = check(payload, restored(payload, X, y), y)
    if options.json:
        print(json.dumps(verdict.to_dict()))
    else:
        for item, detail in verdict.checks:
            print(f"{item:16} {detail}")
        print(verdict)
    return EXIT[verdict.answer]


def _named(payload: Any) -> tuple[str, str, Any, str]:
    """Kind, loss, hash of the data and the column of labels, as far as a certificate says them: they decide how a file is read,
    and nothing else."""
    fields = payload if isinstance(payload, Mapping) else {}
    extra, data = (value if isinstance(value, Mapping) else {} for value in (fields.get("extra"), fields.get("data")))
    return str(fields.get("kind")), str(extra.get("loss", "")), data.get("sha256"), str(data.get("label", ""))


if __name__ == "__main__":
    sys.exit(main())
