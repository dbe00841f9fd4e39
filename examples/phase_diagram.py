"""How much of the certified margin training reaches, over width and initial scale: the store of examples/sweep_phase.toml, drawn.

python examples/phase_diagram.py STORE [PICTURE.png]
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from widemargin import sweep

SQL = """
select width, law_scale, median(fraction), min(fraction), max(fraction), count(*)
from runs group by width, law_scale order by law_scale, width
"""


def main(store: str, out: str = "phase_diagram.png") -> None:
    _, rows = sweep.query(store, SQL)
    cells = list(rows)
    widths, scales = sorted({cell[0] for cell in cells}), sorted({cell[1] for cell in cells})
    middle = np.full((len(scales), len(widths)), np.nan)
    for width, scale, value, *_ in cells:
        middle[scales.index(scale), widths.index(width)] = value
    facts = "max(1 - certified_lower / certified_upper), max(fraction), count(*), sum(status = 'reached')"
    gap, best, count, fitted = next(iter(sweep.query(store, f"select {facts} from runs")[1]))

    figure, axes = plt.subplots(figsize=(7, 4.8), layout="constrained")
    # cividis: even in lightness, and the same to eyes that do not tell red from green
    picture = axes.imshow(middle, origin="lower", aspect="auto", cmap="cividis", vmin=0, vmax=1)
    for row, column in np.ndindex(*middle.shape):
        value = middle[row, column]
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.5 else "white")
    axes.set_xticks(range(len(widths)), [str(width) for width in widths])
    axes.set_yticks(range(len(scales)), [f"{scale:g}" for scale in scales])
    axes.set_xlabel("width m")
    axes.set_ylabel("initial scale s")
    axes.set_title("Share of the certified F1 margin at training risk 1e-4")
    figure.colorbar(picture, label=f"median of {count // len(cells)} runs")
    figure.savefig(out, dpi=110)

    print(f"{count} runs; {fitted} got down to the risk asked for, the others are too narrow or stuck")
    print(f"certificates are tight to {gap:.1e}; no run reaches more than {best:.4f} of its certified margin")
    for scale, line in zip(scales, middle):
        print(
            f"initial scale {scale:6g}: " + "  ".join(f"m={width}: {value:.2f}" for width, value in zip(widths, line))
        )
    wide = middle[:, -1]
    print(
        f"At the largest width the share falls from {wide.max():.2f} (scale {scales[int(wide.argmax())]:g}) "
        f"to {wide.min():.2f} (scale {scales[int(wide.argmin())]:g})."
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
