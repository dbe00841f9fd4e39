"""Networks that the commands read: state dicts in files, without running anything that is in them, and the ends of runs."""

from __future__ import annotations

import argparse
import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from widemargin.disk import check_archive, fits_memory
from widemargin.types import Dataset, InputError

from .options import legal

MOST = 2**31  # bytes of a model


def network(name: str) -> Mapping[str, Any]:
    """The weights of a two-layer network in a file."""
    from widemargin.margins.models import layers

    state = state_dict(name)
    try:
        layers(state)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    return state


def state_dict(name: str) -> Mapping[str, Any]:
    """The weights in a file, read without running anything that is in it."""
    try:
        path = Path(name)
        if not legal(name) or not path.is_file():
            raise InputError(
                f"{name[:200]}: there is no such file; give the state dict of a network, .pt or .safetensors"
            )
        if path.stat().st_size > MOST:
            raise InputError(f"{name}: the file is larger than 2 GiB; this is no two-layer network")
    except OSError as error:
        raise InputError(f"{name[:80]}: {error.strerror or error}; give the state dict of a network") from None
    if path.suffix.lower() == ".safetensors":
        state = _safetensors(path)
    else:
        import torch

        begins = b""
        try:
            with path.open("rb") as file:
                begins = file.read(4)
                # torch packs nothing, but unpacks what others have, whatever its size
                if begins == b"PK\x03\x04":
                    check_archive(file, name)
                file.seek(0)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about TorchScript, which is refused in one sentence
                    # The open file: another may have its name by now, which nobody has looked at.
                    state = torch.load(file, map_location="cpu", weights_only=True)
        except (InputError, MemoryError):  # the latter says nothing of the file
            raise
        except Exception as error:  # damaged files and other formats raise nearly anything, and say nothing that helps
            if isinstance(error, pickle.UnpicklingError) and begins[:1] in (b"P", b"\x80"):  # what torch.save writes
                raise InputError(
                    f"{name} holds more than tensors, and reading it could run code; save model.state_dict() instead"
                ) from None
            raise InputError(
                f"{name} cannot be read as a state dict: it is damaged, or of another format; "
                "save model.state_dict() with torch.save"
            ) from None
    from widemargin.margins.models import inner

    if not isinstance(state, Mapping):
        raise InputError(f"{name} holds a {type(state).__name__}; save model.state_dict() instead")
    taken = 8 * sum(map(_numbers, inner(state).values()))
    if not fits_memory(taken, path.stat().st_size):  # views of few numbers, and sparse ones
        raise InputError(
            f"{name} holds tensors that take {taken} bytes as numbers, far more than its own; save it dense"
        )
    return state


def _numbers(value: Any) -> int:
    try:
        return math.prod(getattr(value, "shape", (0,)))
    except RuntimeError:  # a tensor of several others, which is no array
        return 0


def _safetensors(path: Path) -> Mapping[str, Any]:
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise InputError(f"{path}: the package safetensors is not installed; install it, or save a .pt file") from None
    try:
        return load_file(path)
    except MemoryError:
        raise
    except Exception as error:  # as above
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise InputError(f"{path} cannot be read as safetensors ({said}); save it again") from None


def is_run(options: argparse.Namespace) -> bool:
    """Whether --model is a run; an InputError where an option has no place beside it."""
    run = options.model is not None and legal(options.model) and Path(options.model).is_dir()
    if options.trial is not None and not run:
        raise InputError("--trial is for runs of widemargin train; leave it out")
    if run and options.data is None and (options.label is not None or options.standardize):
        option = "--standardize" if options.standardize else "--label"
        raise InputError(f"{options.model} is a run and has its own points and labels; leave {option} out")
    return run


def trained(name: str, trial: int) -> tuple[Mapping[str, Any], Dataset, str]:
    """The last weights of a trial of a run, its data and its loss."""
    from widemargin import flows
    from widemargin.flows import runs
    from widemargin.margins.models import of_run

    done, sets = flows.load(name), runs.load_data(name)
    try:
        net = of_run(done, trial)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    model = {"V.weight": net.W, "a": net.a} | ({} if net.b is None else {"V.bias": net.b})
    loss = {"ce": "logistic"}.get(done.config["loss"], done.config["loss"])  # the same for one output
    return model, sets[trial if len(sets) > 1 else 0], loss
