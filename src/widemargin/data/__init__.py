"""Data sets: with a formula, from scikit-learn, from files; `load` takes any of them by one line of text.

All functions return `data`, a `Dataset` with X (n, d) and y (n,). What is drawn depends on the arguments and `seed` alone.
"""

from .files import load_file, save_dataset
from .real import cifar_cats_dogs, digits, mnist
from .spec import SOURCES, load, load_for_loss
from .synthetic import (
    bad_kkt_cones,
    bad_kkt_plane,
    check_nc,
    clusters,
    disk_centres,
    disks,
    dyadic,
    neural_collapse,
    one_relu,
    parity,
    relu_teacher,
    simplex_directions,
    teacher_network,
    three_intervals,
    xor_with_noise,
)

__all__ = [
    "SOURCES",
    "bad_kkt_cones",
    "bad_kkt_plane",
    "check_nc",
    "cifar_cats_dogs",
    "clusters",
    "digits",
    "disk_centres",
    "disks",
    "dyadic",
    "load",
    "load_file",
    "load_for_loss",
    "mnist",
    "neural_collapse",
    "one_relu",
    "parity",
    "relu_teacher",
    "save_dataset",
    "simplex_directions",
    "teacher_network",
    "three_intervals",
    "xor_with_noise",
]
