"""Figures of CB (Chizat and Bach 2020) and the rates of its Propositions 6 and 7, with certified margins beside them."""

from . import figure_1, figure_2a, figure_2b, figure_2c, figure_2d, figure_3, figure_4, rates

__all__ = ["figure_1", "figure_2a", "figure_2b", "figure_2c", "figure_2d", "figure_3", "figure_4", "rates"]
