"""Margins of a table: write a small csv file, read it, and compare three kinds of margin.

    python examples/read_csv.py [FILE.csv] [--label COLUMN]

Without FILE a table of 24 measurements in two classes is written to measurements.csv first.
"""

import argparse
import csv

import numpy as np

import widemargin as wm


def write_measurements(path: str) -> None:
    """Two features; class "ok" in the middle, class "faulty" around it."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 24)
    radius = np.where(np.arange(24) % 2, 1.0, 0.3) + 0.1 * rng.random(24)
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["width", "height", "label"])
        for i in range(24):
            row = (2 + radius[i] * np.array([np.cos(angle[i]), np.sin(angle[i])])).round(3)
            table.writerow([*row.tolist(), "faulty" if i % 2 else "ok"])


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("file", nargs="?", help="a csv file with a header line")
parser.add_argument("--label", help="the column with the two classes [y or label]")
options = parser.parse_args()
if options.file is None:
    options.file = "measurements.csv"
    write_measurements(options.file)

try:
    data = wm.data.load(options.file, options.label)
except wm.InputError as error:
    raise SystemExit(f"cannot use {options.file}: {error}") from None
print(data, *data.notes, sep="\n")

# A bias is needed here: without one every network has f(2 x) = 2 f(x), so only directions matter.
print(wm.margins.f1(data, bias=True, time_limit=20))
print(wm.margins.f2(data, bias=True))
linear = wm.margins.linear(data, bias=True)
print(linear, linear.reason, sep="\n")
