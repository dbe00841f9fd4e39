"""A model as the monitor sees it: under its wrappers, its logits for a batch, and the norms of its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.types import InputError

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
PIECE = 1 << 24  # entries widened to float64 at once


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself under torch.compile and DistributedDataParallel; names of parameters are those it has there."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def check_model(model: nn.Module) -> None:
    """Complain about parameters that have no values."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the monitor watches a torch.nn.Module, not {type(model).__name__}")
    for name, p in unwrap(model).named_parameters():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InputError(f"{name} is a lazy parameter without a shape yet; run one batch through the model first")
        if p.is_meta:
            raise InputError(
                f"{name} is on the meta device and has no values; materialise the model first (model.to_empty)"
            )


def device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """eval mode and no gradients inside; every module's own mode, and torch's random state, as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    device = device_of(model)
    model.eval()
    try:
        with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


# ---------------------------------------------------------------- logits


def to_device(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch) if type(batch) in (tuple, list) else batch
    return batch


def logits_and_targets(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    """The usual kinds of batch: a pair (inputs, targets), or a mapping with `labels` as Hugging Face models take.

    Causal language models predict the next token, so their logits and labels are shifted against each other.
    """
    if isinstance(batch, Mapping):
        key = next((k for k in ("labels", "label", "targets", "target") if k in batch), None)
        if key is None:
            raise InputError(
                f"the batch has no labels, only {', '.join(map(str, batch))}; give forward=, a function of model and batch"
            )
        logits = logits_of(model(**{k: v for k, v in batch.items() if k != key}))
        return shifted(logits, batch[key]) if is_causal(model) else (logits, batch[key])
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return logits_of(model(batch[0])), batch[1]
    raise InputError(
        f"a batch must be a pair (inputs, targets) or a mapping with labels, not {_kind(batch)}; "
        "give forward=, a function of model and batch that returns logits and targets"
    )


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(found, Tensor):
        return found
    raise InputError(
        f"the model returned {_kind(output)} and not logits; give forward=, a function of model and batch that returns logits "
        "and targets"
    )


def is_causal(model: nn.Module) -> bool:
    """Whether this is a causal language model of `transformers`, whose labels are its inputs."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1], labels[:, 1:]


def _kind(thing: Any) -> str:
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    return f"a {type(thing).__name__}"


# ---------------------------------------------------------------- norms


def squares(parameters: Sequence[Tensor], world: int = 1) -> Tensor:
    """This rank's share of the sum of squares, in float64: over all `world` ranks the shares sum to the whole.

    A parameter that several ranks hold alike is divided by their number; of a sharded one (FSDP2) each rank counts its shard.
    """
    total: Tensor | None = None
    for p in parameters:
        local, copies = _local(p.detach(), world)
        for piece in local.reshape(-1).split(PIECE):
            part = piece.double().square().sum() / copies
            total = part if total is None else total + part
    return torch.zeros((), dtype=torch.float64) if total is None else total


def quick_squares(parameters: Sequence[Tensor], world: int = 1) -> Tensor:
    """As `squares`, in the parameters' own precision and few kernels: for every step of training."""
    groups: dict[float, list[Tensor]] = {}
    for p in parameters:
        local, copies = _local(p.detach(), world)
        groups.setdefault(copies, []).append(local)
    parts = [nn.utils.get_total_norm(local).double().square() / copies for copies, local in groups.items()]
    return torch.zeros((), dtype=torch.float64) if not parts else torch.stack(parts).sum()


def _local(p: Tensor, world: int) -> tuple[Tensor, float]:
    """What this rank holds of a parameter, and how many ranks hold the same."""
    placements = getattr(p, "placements", None)
    if placements is None:
        return p, world
    mesh = p.device_mesh  # type: ignore[attr-defined]
    sharded = math.prod(mesh.size(k) for k, placement in enumerate(placements) if placement.is_shard())
    return p.to_local(), world / sharded  # type: ignore[attr-defined]


def blocks(names: Sequence[str]) -> dict[str, list[str]]:
    """Parameters by the part of the model they are in: up to the first number of their name, else their module.

    model.layers.0.self_attn.q_proj.weight is in model.layers.0, lm_head.weight in lm_head.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = next((k + 1 for k, part in enumerate(parts) if part.isdigit()), max(1, len(parts) - 1))
        found.setdefault(".".join(parts[:cut]), []).append(name)
    return found
