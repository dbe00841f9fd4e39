"""LR (Telgarsky, feature selection in low-rotation regimes): Figure 1, Figure 2 and Table 1."""

from . import figure_1, figure_2, table_1

__all__ = ["figure_1", "figure_2", "table_1"]
