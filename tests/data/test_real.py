"""Image data: scikit-learn's digits, and CIFAR-10 and MNIST where the files are at hand."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_digits

from widemargin import InputError, data

NEARBY = Path(__file__).parents[2].parent / "shared" / "data"


def image_file(variable, name):
    path = Path(os.environ.get(variable) or NEARBY / name)
    if not path.is_file():
        pytest.skip(f"no image file: set {variable}")
    return path


@pytest.fixture
def small_file(tmp_path):
    """12 training and 4 test images of 2 x 2 x 3 pixels in classes 3, 5 and 7."""
    rng = np.random.default_rng(0)
    path = tmp_path / "small.npz"
    images = {
        f"{part}_images": rng.integers(0, 256, (n, 2, 2, 3)).astype(np.uint8)
        for part, n in (("train", 12), ("test", 4))
    }
    labels = {
        "train_labels": np.array([3, 5, 7] * 4, dtype=np.uint8),
        "test_labels": np.array([5, 3, 7, 5], dtype=np.uint8),
    }
    np.savez(path, **images, **labels)
    return path, images | labels


def test_digits():
    pixels, labels = load_digits(return_X_y=True)
    all_of_them = data.digits()
    keep = np.isin(labels, (3, 8))
    assert_array_equal(all_of_them.X, pixels[keep] / 16)
    assert_array_equal(all_of_them.y, np.where(labels[keep] == 8, 1, -1))
    assert all_of_them.classes == (3, 8)
    some = data.digits((8, 3), n=61, seed=1)
    assert some.n == 61
    assert abs(some.y.sum()) == 1
    assert some.X.min() >= 0 and some.X.max() == 1
    truth = {tuple(x): y for x, y in zip(pixels / 16, labels)}
    assert_array_equal([truth[tuple(x)] for x in some.X], np.where(some.y > 0, 3, 8))
    assert len(np.unique(some.X, axis=0)) == 61


def test_digits_are_as_balanced_as_available():
    counts = np.bincount(load_digits(return_X_y=True)[1])
    n = counts[3] + counts[8] - 1
    drawn = data.digits(n=int(n))
    assert len(np.unique(drawn.X, axis=0)) == n
    with pytest.raises(InputError, match="n must be"):
        data.digits(n=int(n) + 2)


@pytest.mark.parametrize("classes", [(3, 3), (3,), 3, (3, 11), ("a", "b"), None])
def test_digits_refuse_classes(classes):
    with pytest.raises(InputError, match="classes must be"):
        data.digits(classes)


def test_images_from_a_file(small_file):
    path, arrays = small_file
    drawn = data.cifar_cats_dogs(path)
    keep = arrays["train_labels"] != 7
    assert_allclose(drawn.X, arrays["train_images"][keep].reshape(8, 12) / 255, rtol=1e-15)
    assert_array_equal(drawn.y, np.where(arrays["train_labels"][keep] == 5, 1, -1))
    assert drawn.classes == ("cat", "dog")
    centred = data.cifar_cats_dogs(path, center=True)
    assert_allclose(centred.X, drawn.X - drawn.X.mean(axis=0), atol=1e-14)
    assert_allclose(data.cifar_cats_dogs(path, unit=True).X, drawn.X / np.sqrt(12), rtol=1e-14)
    test = data.mnist(path, classes=(5, 7), split="test", center=True)
    mean = arrays["train_images"][arrays["train_labels"] != 3].reshape(8, 12).mean(axis=0)
    assert_allclose(test.X, (arrays["test_images"][[0, 2, 3]].reshape(3, 12) - mean) / 255, atol=1e-14)
    assert_array_equal(test.y, [-1, 1, -1])
    some = data.load(f"cifar:path={path},n=4,seed=3")
    assert_array_equal(np.sort(some.y), [-1, -1, 1, 1])
    assert some.name == "cifar:n=4,seed=3"


def test_the_variable_names_the_file(small_file, monkeypatch):
    monkeypatch.setenv("WIDEMARGIN_CIFAR10", str(small_file[0]))
    assert data.load("cifar").n == 8
    monkeypatch.delenv("WIDEMARGIN_CIFAR10")
    with pytest.raises(InputError, match="WIDEMARGIN_CIFAR10"):
        data.load("cifar")
    monkeypatch.delenv("WIDEMARGIN_MNIST", raising=False)
    with pytest.raises(InputError, match="WIDEMARGIN_MNIST"):
        data.mnist()


def test_bad_image_files(small_file, tmp_path):
    path, arrays = small_file
    with pytest.raises(InputError, match="class 9"):
        data.mnist(path, classes=(3, 9))
    with pytest.raises(InputError, match="split must be"):
        data.mnist(path, split="valid")
    with pytest.raises(InputError, match="n must be"):
        data.mnist(path, classes=(3, 5), n=9)
    with pytest.raises(InputError, match="No such file"):
        data.mnist(tmp_path / "absent.npz")
    with pytest.raises(InputError, match="1: the path must be text"):  # an open file of the process, to Python
        data.mnist(1)
    short = arrays | {"train_labels": arrays["train_labels"][:5]}
    for name, bad in {
        "short": short,
        "float": arrays | {"train_images": arrays["train_images"] / 255},
        "text": arrays | {"train_labels": arrays["train_labels"].astype(str)},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **bad)
        with pytest.raises(InputError, match="train_labels"):
            data.mnist(tmp_path / f"{name}.npz")
    np.savez(tmp_path / "none.npz", X=np.zeros(3))
    with pytest.raises(InputError, match="train_images"):
        data.mnist(tmp_path / "none.npz")


def test_cifar_cats_and_dogs():
    path = image_file("WIDEMARGIN_CIFAR10", "cifar10_cats_dogs.npz")
    drawn = data.cifar_cats_dogs(path, n=20, split="test", unit=True)
    assert drawn.X.shape == (20, 3072)
    assert drawn.y.sum() == 0
    assert 0 < np.linalg.norm(drawn.X, axis=1).max() <= 1


def test_mnist():
    path = image_file("WIDEMARGIN_MNIST", "mnist.npz")
    drawn = data.mnist(path, classes=(4, 9), split="test")
    assert drawn.X.shape == (982 + 1009, 784)
    assert drawn.y.sum() == 1009 - 982
    assert drawn.X.max() == 1
