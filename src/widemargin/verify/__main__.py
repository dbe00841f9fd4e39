"""`python -m widemargin.verify CERT DATA`: the verdict on a certificate, where only numpy is installed.

Exit status: 0 proved exactly, 1 refused, 2 a file that cannot be read, 3 holds with a probability, 4 not proved.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from .files import load, read_data
from .frame import EXIT, check


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
        kind = str(payload.get("kind")) if isinstance(payload, Mapping) else ""
        X, y = read_data(options.data, kind)
    except ValueError as error:
        print(f"widemargin.verify: {error}", file=sys.stderr)
        return 2
    verdict = check(payload, X, y)
    if options.json:
        print(json.dumps(verdict.to_dict()))
    else:
        for item, detail in verdict.checks:
            print(f"{item:16} {detail}")
        print(verdict)
    return EXIT[verdict.answer]


if __name__ == "__main__":
    sys.exit(main())
