"""Real images in two classes: digits from scikit-learn, CIFAR-10 and MNIST from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.types import Dataset, InputError

from . import checks
from .files import read_npz

CAT, DOG = 3, 5  # CIFAR-10's labels


def digits(classes: Sequence[int] = (3, 8), n: int | None = None, seed: int = 0) -> Dataset:
    """Two of scikit-learn's 8 x 8 digits, pixels in [0, 1] (d = 64); classes[0] is -1, classes[1] is +1.

    All images in their order, or a random n of them, half of each class as far as available.

    >>> import widemargin as wm
    >>> data = wm.data.digits(classes=(3, 8), n=20, seed=0)
    >>> data.X.shape, int(data.y.sum()), float(data.X.min()) >= 0, float(data.X.max()) <= 1
    ((20, 64), 0, True, True)
    """
    from sklearn.datasets import load_digits

    pair = _pair("digits", classes)
    pixels, labels = load_digits(return_X_y=True)
    rows = _choose("digits", labels, pair, n, seed)
    spec = checks.spec_name("digits", classes=pair, n=n, seed=None if n is None else seed)
    return Dataset(pixels[rows] / 16, np.where(labels[rows] == pair[1], 1, -1), spec, pair)


def several_digits(classes: Sequence[int] = tuple(range(10)), n: int | None = None, seed: int = 0) -> Dataset:
    """Up to ten of the `digits`; y is the position of the label in `classes`: 0, ..., K-1.

    All images in their order, or a random n of them, as many of each class as far as available.
    """
    from sklearn.datasets import load_digits

    several = _several("digits", classes)
    pixels, labels = load_digits(return_X_y=True)
    rows = _choose_several("digits", labels, several, n, seed)
    spec = checks.spec_name("digits", classes=several, n=n, seed=None if n is None else seed)
    numbers = np.argmax(labels[rows, None] == np.array(several), axis=1)
    return Dataset(pixels[rows] / 16, numbers, spec, several)


def cifar_cats_dogs(
    path: str | os.PathLike[str] | None = None,
    n: int | None = None,
    seed: int = 0,
    split: str = "train",
    center: bool = False,
    unit: bool = False,
) -> Dataset:
    """Cats (-1) and dogs (+1) of CIFAR-10, pixels / 255, flattened to d = 3072.

    The file is an .npz with uint8 arrays train_images, train_labels, test_images and test_labels, where 3 is cat and
    5 is dog (other classes are left out); its path is `path` or the environment variable WIDEMARGIN_CIFAR10.
    `center` subtracts the mean of the training images, `unit` divides by sqrt(d), so that ||x|| <= 1. All images in
    their order, or a random n of them, half of each class.

    BN Figure 1 uses n = 1000 with ||x|| <= 1 (BN-24).

    `split` is "train" or "test". X is (n, 3072), or as many columns as the file's images have numbers:

    >>> import numpy as np
    >>> import widemargin as wm
    >>> images, labels = np.full((4, 2, 2, 3), 255, dtype=np.uint8), np.array([3, 5, 7, 5], dtype=np.uint8)
    >>> np.savez("tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    >>> data = wm.data.cifar_cats_dogs("tiny.npz", unit=True)
    >>> data.X.shape, data.y.tolist(), bool(np.allclose(np.linalg.norm(data.X, axis=1), 1))
    ((3, 12), [-1.0, 1.0, 1.0], True)
    """
    data = _images("cifar", path, "WIDEMARGIN_CIFAR10", (CAT, DOG), n, seed, split, center, unit)
    return Dataset(*data, _image_name("cifar", None, n, seed, split, center, unit), ("cat", "dog"))


def mnist(
    path: str | os.PathLike[str] | None = None,
    classes: Sequence[int] = (3, 8),
    n: int | None = None,
    seed: int = 0,
    split: str = "train",
    center: bool = False,
    unit: bool = False,
) -> Dataset:
    """Two digits of MNIST, pixels / 255, flattened to d = 784; classes[0] is -1, classes[1] is +1.

    The file is an .npz as for `cifar_cats_dogs`, at `path` or the environment variable WIDEMARGIN_MNIST; the other
    arguments are the same.

    `n`, `seed`, `split`, `center` and `unit` are those of `cifar_cats_dogs`. X is (n, 784), or as the file's images are:

    >>> import numpy as np
    >>> import widemargin as wm
    >>> images, labels = np.full((4, 2, 2), 51, dtype=np.uint8), np.array([3, 8, 8, 0], dtype=np.uint8)
    >>> np.savez("tiny.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    >>> data = wm.data.mnist("tiny.npz", classes=(8, 3))
    >>> data.X.shape, data.y.tolist(), float(data.X[0, 0])
    ((3, 4), [1.0, -1.0, -1.0], 0.2)
    """
    pair = _pair("mnist", classes)
    data = _images("mnist", path, "WIDEMARGIN_MNIST", pair, n, seed, split, center, unit)
    return Dataset(*data, _image_name("mnist", pair, n, seed, split, center, unit), pair)


def _image_name(
    name: str, pair: tuple[int, int] | None, n: int | None, seed: int, split: str, center: bool, unit: bool
) -> str:
    return checks.spec_name(
        name,
        classes=pair,
        n=n,
        seed=None if n is None else seed,
        split=None if split == "train" else split,
        center=True if center else None,
        unit=True if unit else None,
    )


def _images(
    name: str,
    path: str | os.PathLike[str] | None,
    variable: str,
    pair: tuple[int, int],
    n: int | None,
    seed: int,
    split: str,
    center: bool,
    unit: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """X and y of two classes of an image file."""
    checks.choice(name, "split", split, ("train", "test"))
    path = os.environ.get(variable) if path is None else path
    if not path:
        raise InputError(f"{name}: the image file is not known; give path or set the environment variable {variable}")
    splits = ("train", "test") if center and split == "test" else (split,)
    wanted = [f"{part}_{what}" for part in splits for what in ("images", "labels")]
    arrays = read_npz(path, wanted)
    for part in splits:
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if (
            images.dtype != np.uint8
            or images.ndim < 2
            or labels.dtype.kind not in "iu"
            or labels.shape != images.shape[:1]
        ):
            raise InputError(
                f"{name}: {Path(path).name} must have uint8 {part}_images and one integer in {part}_labels for each"
            )

    images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
    rows = _choose(name, labels, pair, n, seed)
    X = images[rows].reshape(len(rows), -1) / 255
    if center:
        train = arrays["train_images"][np.isin(arrays["train_labels"], pair)]
        if not len(train) or train.shape[1:] != images.shape[1:]:
            raise InputError(f"{name}: {Path(path).name} must have training images of the same size for center")
        X -= train.reshape(len(train), -1).mean(axis=0) / 255
    return X / np.sqrt(X.shape[1]) if unit else X, np.where(labels[rows] == pair[1], 1, -1)


def _pair(name: str, classes: Any) -> tuple[int, int]:
    try:
        pair = tuple(checks.integer(name, "classes", c, 0, 9) for c in classes)
    except TypeError:
        pair = ()
    if len(pair) != 2 or pair[0] == pair[1]:
        raise InputError(f"{name}: classes must be two different digits like 3-8, not {checks.show(classes)}")
    return pair[0], pair[1]


def _several(name: str, classes: Any) -> tuple[int, ...]:
    try:
        several = tuple(checks.integer(name, "classes", c, 0, 9) for c in classes)
    except TypeError:
        several = ()
    if len(several) < 2 or len(set(several)) < len(several):
        raise InputError(f"{name}: classes must be different digits like 0-1-2, not {checks.show(classes)}")
    return several


def _choose_several(name: str, labels: np.ndarray, classes: tuple[int, ...], n: int | None, seed: int) -> np.ndarray:
    """Rows of several classes: all in order, or a random n, as evenly as available."""
    rng = np.random.default_rng(checks.seed(name, seed))
    members = [rng.permutation(np.flatnonzero(labels == c)) for c in classes]
    if n is None:
        return np.sort(np.concatenate(members))
    n = checks.integer(name, "n", n, len(classes), sum(map(len, members)))
    turn = np.concatenate([np.arange(len(rows)) for rows in members])  # one of each class, then a second of each, ...
    return rng.permutation(np.concatenate(members)[np.argsort(turn, kind="stable")[:n]])


def _choose(name: str, labels: np.ndarray, pair: tuple[int, int], n: int | None, seed: int) -> np.ndarray:
    """Rows of the two classes: all in order, or a random n, as balanced as available."""
    rng = np.random.default_rng(checks.seed(name, seed))
    members = [np.flatnonzero(labels == c) for c in pair]
    for c, rows in zip(pair, members):
        if not len(rows):
            raise InputError(f"{name}: there is no image of class {c}; choose other classes or another file")
    if n is None:
        return np.sort(np.concatenate(members))
    total = len(members[0]) + len(members[1])
    n = checks.integer(name, "n", n, 1, total)
    first = min(max(n // 2, n - len(members[1])), len(members[0]))
    parts = [rng.permutation(rows)[:count] for rows, count in zip(members, (first, n - first))]
    return rng.permutation(np.concatenate(parts))
