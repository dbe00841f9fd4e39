"""Formulas of our statements, set with characters and <sub>, <sup>: gamma_2 <= ||x_i||^2 becomes what it means.

Statements are sentences with formulas inside, in a few plain signs. Greek letters, relations, indices and powers are all they
have, which HTML can set by itself: no font, no script, nothing to load, and the text can be copied and read aloud. Fractions stay
on the line.
"""

from __future__ import annotations

import re

from .section import Html, escape

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "eps": "ε", "epsilon": "ε", "eta": "η", "theta": "θ", "kappa": "κ",
    "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "psi": "ψ",
    "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Lambda": "Λ", "Sigma": "Σ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip
LETTERS = "|".join(sorted(GREEK, key=len, reverse=True))
SIGNS = {"&lt;=": "≤", "&gt;=": "≥", "-&gt;": "→", "+-": "±", "!=": "≠"}
# A name of one letter, Greek or not, or a closing bracket: names of more letters, such as log_risk, are not formulas.
BASE = rf"(?<![A-Za-z0-9_])(?:{LETTERS}|[A-Za-z])'?"
INDEX = rf"(?:\{{(?P<long>[^{{}}]*)\}}|(?P<short>{LETTERS}|[A-Za-z](?![a-z])|\d+|inf|min|max))"
POWER = r"(?:\((?P<inside>(?:[^()]|\([^()]*\))*)\)|\{(?P<braces>[^{}]*)\}|(?P<plain>-?\d+|[A-Za-z](?![A-Za-z])))"


def typeset(text: str) -> Html:
    """A statement as HTML; everything else in it is escaped.

    >>> from widemargin.report.formulas import typeset
    >>> typeset("gamma_2 <= n^(-1/2) <b>")
    'γ<sub>2</sub> ≤ n<sup>-1/2</sup> &lt;b&gt;'
    """
    said = escape(text)
    said = re.sub(rf"({BASE})_{INDEX}(?![A-Za-z0-9_])", _index, said)
    said = re.sub(rf"\^{POWER}", _power, said)
    said = re.sub(rf"(?<![A-Za-z0-9_&])({LETTERS})(?![A-Za-z0-9_;])", lambda found: GREEK[found[1]], said)
    said = re.sub(r"\bsqrt(?=\(| \d)", "√", said)
    for plain, sign in SIGNS.items():
        said = said.replace(plain, sign)
    return Html(said)


def _index(found: re.Match[str]) -> str:
    return f"{found[1]}<sub>{found['long'] or found['short']}</sub>"


def _power(found: re.Match[str]) -> str:
    inner = next(part for part in (found["inside"], found["braces"], found["plain"]) if part is not None)
    return f"<sup>{inner}</sup>"
