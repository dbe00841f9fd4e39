"""How the cost of a certified F1 margin grows with n and d: a table and a plot for docs/cost.md.

    python benchmarks/scaling.py [--time-limit 20] [--out docs] [--clock cpu] [--redraw]

2-sparse parity (uniform, seed 0) and disks (reading "code", seed 0), tol 1e-3, one thread, one run each. Prints the table
as Markdown and writes cost.md and cost.png to the folder. With `--clock cpu` all seconds, those of the time limit included, are
processor seconds: for a machine with other work.
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch

import widemargin as wm
from widemargin.papers.drawing import figure_of, lettered, tidy
from widemargin.plots.style import INK, MINUS, PLUS, QUIET, THIRD

PARITY = [(n, d) for d in (3, 5, 10, 20) for n in (16, 32, 64, 128)]
DISKS = [(n, d) for d in (3, 5, 10, 15) for n in (16, 32, 64, 128)]


def measure(spec: str, time_limit: float) -> dict:
    data = wm.data.load(spec)
    cert = wm.margins.f1(data, tol=1e-3, time_limit=time_limit)
    return {
        "seconds": cert.stats["seconds"],
        "gap": cert.gap,
        "nodes": cert.stats["nodes"],
        "lower": cert.lower,
        "upper": cert.upper,
        "status": cert.status,
    }


def said(page: Path) -> list[dict]:
    """The rows of the first table of the page."""
    found = []
    for line in page.read_text().partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("parity", "disks"):
            n, d, seconds, gap = int(cells[1]), int(cells[2]), float(cells[3]), float(cells[4])
            found.append({"data": cells[0], "n": n, "d": d, "seconds": seconds, "gap": gap})
    return found


def draw(rows: list[dict], limit: float, unit: str, folder: Path) -> None:
    figure = figure_of(9.4, 6.6)
    axes = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, family in enumerate(("parity", "disks")):
        for d, colour in zip((3, 5, 10, 15, 20), (PLUS, THIRD, MINUS, INK, INK)):
            mine = [r for r in rows if r["data"] == family and r["d"] == d]
            n = [r["n"] for r in mine]
            for panel, name in zip(axes[:, column], ("seconds", "gap")):
                if mine:
                    panel.loglog(n, [max(r[name], 1e-10) for r in mine], "o-", color=colour, label=f"d = {d}")
        for panel, line, word in zip(axes[:, column], (limit, 1e-3), ("time limit", "tol")):
            panel.axhline(line, color=QUIET, ls=":", lw=1, label="time limit, tol" if word == "tol" else None)
            panel.text(17, 1.12 * line, word, color=QUIET, fontsize=8.5)
            tidy(panel)
        axes[1, column].set(xlabel="points n")
        axes[1, column].set_xticks([16, 32, 64, 128], ["16", "32", "64", "128"])
        axes[1, column].minorticks_off()
        axes[0, column].set_title(f"{family}: {unit}")
        axes[1, column].set_title(f"{family}: certified gap")
        axes[1, column].legend(
            frameon=False, fontsize=8.5, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.2), columnspacing=1
        )
    lettered(list(axes.ravel()))
    for ending in ("png", "pdf"):
        figure.savefig(folder / f"cost.{ending}", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine with other work")
    parser.add_argument("--redraw", action="store_true", help="only draw again what cost.md says")
    args = parser.parse_args()
    if args.redraw:
        draw(said(args.out / "cost.md"), args.time_limit, "processor seconds", args.out)
        return
    if args.clock == "cpu":  # the clocks that the solver looks at
        time.perf_counter = time.monotonic = time.process_time
    torch.set_num_threads(1)
    wm.margins.f1(wm.data.load("parity:d=3,n=8"))  # what is imported on first use is not timed
    rows = []
    families = {
        "parity": (PARITY, "parity:d={d},n={n},k=2,seed=0"),
        "disks": (DISKS, "disks:d={d},n={n},k=3,seed=0,reading=code"),
    }
    for family, (sizes, pattern) in families.items():
        for n, d in sizes:
            found = measure(pattern.format(n=n, d=d), args.time_limit)
            rows.append({"data": family, "n": n, "d": d} | found)
            print(family, n, d, f"{found['seconds']:.1f} s, gap {found['gap']:.1e}, {found['nodes']} nodes", flush=True)
    names = ("data", "n", "d", "seconds", "certified gap", "nodes", "lower", "upper", "status")
    header = "| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|\n"
    lines = []
    for r in rows:
        cells = [r["data"], str(r["n"]), str(r["d"]), f"{r['seconds']:.1f}", f"{r['gap']:.1e}", str(r["nodes"])]
        lines.append("| " + " | ".join([*cells, f"{r['lower']:.6f}", f"{r['upper']:.6f}", r["status"]]) + " |")
    unit = "processor seconds" if args.clock == "cpu" else "seconds"
    text = (
        "# How the cost of a certified F1 margin grows\n\n"
        f"Printed by `python benchmarks/scaling.py --time-limit {args.time_limit:g} --clock {args.clock}`: tol 1e-3, one thread, "
        f"one run each, {unit}, {platform.machine()}, Python {platform.python_version()}. "
        "`d` of disks counts its constant coordinate.\n"
        "`gap` is what is certified when the solver stops, at tol or at the time limit.\n\n"
        "![seconds and gap against n](cost.png)\n\n" + header + "\n".join(lines) + "\n"
    )
    page = args.out / "cost.md"
    rest = page.read_text().partition("\n## ") if page.exists() else ("", "", "")
    args.out.mkdir(parents=True, exist_ok=True)
    draw(rows, args.time_limit, unit, args.out)
    page.write_text(text + "".join(rest[1:]))
    print(text)


if __name__ == "__main__":
    main()
