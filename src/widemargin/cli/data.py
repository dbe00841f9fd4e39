"""`widemargin data`: a named data set as a file."""

from __future__ import annotations

import argparse

from widemargin import data as datasets

from .options import Command, check_kept, check_writable, readable, sources
from .screen import say


def write_data(options: argparse.Namespace) -> int:
    """Write a named data set to a file."""
    check_writable(options.out)
    check_kept(options.out, [options.spec])
    data = datasets.load(options.spec, options.label)
    datasets.save_dataset(data, options.out)
    for note in data.notes:
        say(f"{data.name}: {note}")
    say(f"{data} written to {options.out}")
    return 0


def add(command: Command) -> None:
    parser = command("data", write_data, "write a named data set to a file", epilog=sources())
    parser.add_argument("spec", metavar="SPEC", help="a spec such as parity:d=20,n=64,seed=0 (or a file to convert)")
    parser.add_argument("--out", metavar="FILE", required=True, help="FILE.npz or FILE.csv")
    readable(parser)
