"""The papers behind the margins, and what to cite: BibTeX for widemargin, for a certificate, and for the papers it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """One entry of a bibliography; `authors` are empty where a submission was anonymous."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int | None
    where: str  # a field of BibTeX and its value
    entry: str = "misc"

    def bibtex(self) -> str:
        """The entry."""
        who = " and ".join(self.authors) or "{Anonymous}"
        field, _, value = self.where.partition("=")
        return entry(
            self.entry, self.key, {"title": f"{{{self.title}}}", "author": who, "year": self.year, field: value}
        )


def entry(kind: str, key: str, fields: Mapping[str, object]) -> str:
    """BibTeX."""
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value not in ("", None)]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


PAPERS = {
    "CB": Paper(
        "chizat2020implicit",
        "Implicit bias of gradient descent for wide two-layer neural networks trained with the logistic loss",
        ("Chizat, L{\\'e}na{\\\"i}c", "Bach, Francis"),
        2020,
        "booktitle=Conference on Learning Theory (COLT)",
        "inproceedings",
    ),
    "MT": Paper(
        "wei2019margin",
        "On the margin theory of feedforward neural networks",
        ("Wei, Colin", "Lee, Jason D.", "Liu, Qiang", "Ma, Tengyu"),
        2019,
        "note=arXiv:1810.05369; NeurIPS 2019 as ``Regularization matters''",
    ),
    "LR": Paper(
        "telgarsky2022feature",
        "Feature selection with gradient descent on two-layer networks in low-rotation regimes",
        ("Telgarsky, Matus",),
        2022,
        "note=arXiv:2208.02789",
    ),
    "UH": Paper(
        "ubiquity",
        "The ubiquity of 2-homogeneity, how its implicit bias selects features, and other stories",
        (),
        None,
        "note=Submission under review when it was read",
    ),
    "BN": Paper(
        "batchnorm",
        "Test error guarantees for batch-normalized shallow ReLU networks trained with gradient descent",
        (),
        None,
        "note=Submission under review when it was read",
    ),
    "PE": Paper(
        "pilanci2020convex",
        "Neural networks are convex regularizers: exact polynomial-time convex optimization formulations for two-layer networks",
        ("Pilanci, Mert", "Ergen, Tolga"),
        2020,
        "booktitle=International Conference on Machine Learning (ICML)",
        "inproceedings",
    ),
}
BEHIND = {  # kind of certificate: whose margin, norm or objective it is
    "f1": ("CB", "MT"),
    "f2": ("CB", "MT"),
    "frozen": ("CB", "UH"),
    "rf": ("CB",),
    "ntk": ("LR",),
    "tangent": ("LR",),
    "bn": ("BN",),
    "collapse": ("LR",),
    "projected": ("CB",),
    "f1-multiclass": ("MT",),
    "linear-multiclass": ("MT",),
    "l1-regression": ("MT",),
    "l2-regression": ("MT",),
    "f1-optimum": ("MT", "PE"),
    "f2-optimum": ("MT",),
    "f1-multiclass-optimum": ("MT", "PE"),
    "f1-multitarget-optimum": ("MT", "PE"),
}


def software(version: str, date: str, note: str = "") -> str:
    """The entry for widemargin itself, of the version that was used."""
    fields = {
        "title": "{widemargin}: certified margins of neural networks",
        "author": "{The widemargin developers}",
        "year": date[:4],
        "version": version,
        "note": note,
    }
    return entry("software", "widemargin", fields)
