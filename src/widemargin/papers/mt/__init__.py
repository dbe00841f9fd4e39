"""Figures 1 to 3 of MT (Wei, Lee, Liu and Ma), the two gaps between nets and kernels measured, and Table 1 (MT-31 to MT-34).

The paper leaves most settings of its experiments open (E-MT-11); each choice is in the settings, with its reason in the words.
"""

# In the order of the paper, which is that of the registry.
# isort: off
from . import figure_1, figure_2, weak_decay, figure_3, margin_gap, regression_gap, table_1
# isort: on

__all__ = ["figure_1", "figure_2", "figure_3", "margin_gap", "regression_gap", "table_1", "weak_decay"]
