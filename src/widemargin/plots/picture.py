"""The figure that pictures are drawn on."""

from __future__ import annotations

import io

from widemargin import extras

extras.load_matplotlib()
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402


class Picture(Figure):
    """A figure of matplotlib that a notebook shows as it is: no backend need be chosen, and no window opens."""

    def __init__(self, width: float, height: float, dpi: int) -> None:
        super().__init__(figsize=(width, height), dpi=dpi, layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", dpi=100)
        return drawn.getvalue()
