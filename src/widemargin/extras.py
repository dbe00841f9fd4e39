"""What `pip install widemargin` leaves out: imported when it is first used, and one sentence where it is not there.

numpy, scipy and rich are always there: they are enough to verify certificates, query sweeps, read data and evaluate theorems on
numbers. Everything that searches, trains, draws or watches needs the extra `train`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from types import ModuleType
from typing import Any

from widemargin.errors import InputError

EXTRA = {
    "torch": "torch",
    "sklearn": "scikit-learn",
    "threadpoolctl": "threadpoolctl",
    "highspy": "highspy",
    "clarabel": "clarabel",
    "matplotlib": "matplotlib",
    "contourpy": "contourpy",
    "pyarrow": "pyarrow",
    "plotly": "plotly",
    "joblib": "joblib",
    "filelock": "filelock",
}  # what the extra `train` brings: the name that is imported, and the package


class Missing(ModuleNotFoundError, InputError):
    """A package of the extra `train` is not installed. It is bad input, and an ImportError for those who try."""


def sentence(name: str | None) -> str | None:
    """What to install for the module `name`; None where `train` does not bring it."""
    package = EXTRA.get((name or "").split(".")[0])
    return package and f"this needs the package {package}, which is not installed; run pip install 'widemargin[train]'"


def load(name: str) -> ModuleType:
    """The module `name`, imported now."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        said = None if isinstance(error, Missing) else sentence(error.name)
        if said is None:
            raise
        raise Missing(said, name=error.name) from None


def load_matplotlib() -> ModuleType:
    """matplotlib, whatever MPLBACKEND says: pictures to files need no backend, and a name that is none would end the import
    in its middle. A name that is one is set as matplotlib itself would set it."""
    named = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    try:
        module = load("matplotlib")
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    if named:
        with contextlib.suppress(ValueError):
            module.rcParams["backend"] = named
    return module


class Later:
    """A module that is imported when something of it is first used.

    Nothing of it is kept here, so that what is replaced in the module, by a test say, is replaced for all.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            self._module = load(self._name)
        return getattr(self._module, name)

    def __repr__(self) -> str:
        return f"<{self._name}, imported when first used>"
