"""A model as the monitor sees it: under its wrappers, its logits for a batch, and the norms of its parameters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.errors import show
from widemargin.spaces import as_truth
from widemargin.types import InputError

Forward = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
LEFT = (
    "parameters whose norm is measured are no longer in the model (a layer was replaced, pruned or parametrised); close this "
    "monitor and make another"
)
LABELS = ("labels", "label", "targets", "target")  # what a mapping calls them
WIDE = {torch.float32, torch.float64}
PIECE = 1 << 16  # entries widened to float64 at once: they stay in the cache


class Norms(NamedTuple):
    """Sizes of the homogeneous parameters at one moment, scalars on their devices."""

    lengths: Sequence[Tensor]  # of what this rank holds of each
    copies: Sequence[float] = ()  # on how many ranks the same is held; nothing: on all
    own: Sequence[Tensor] = ()  # from which `OwnNorm.sizes` has the norm of the optimiser,
    scales: Sequence[float] = ()  # and what its products were multiplied by


def unwrap(model: nn.Module) -> nn.Module:
    """The module itself under torch.compile and DistributedDataParallel; names of parameters are those it has there."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def bare(model: nn.Module) -> nn.Module:
    """The model without DistributedDataParallel, whose forward pass sends buffers round and so needs every rank each time."""
    outer, inner = model, model
    while isinstance(inner, nn.Module):
        if isinstance(inner, nn.parallel.DistributedDataParallel):
            outer = inner.module
            inner = outer
        else:
            inner = getattr(inner, "_orig_mod", None)  # type: ignore[assignment]
    return outer


def is_sharded(model: nn.Module) -> bool:
    """Whether ranks hold parts of parameters (FSDP2, tensor parallelism), so that a forward pass needs them all."""
    reshard(model)
    return any(hasattr(p, "placements") for p in model.parameters())


def sharded_modules(model: nn.Module) -> list[Any]:
    """The modules of FSDP2."""
    # A mark of FSDPModule, without importing it.
    return [module for module in model.modules() if hasattr(type(module), "set_reshard_after_forward")]


def reshard(model: nn.Module, modules: Sequence[Any] | None = None) -> None:
    """Drop whole parameters that FSDP2 keeps after a forward pass: they would be used again although the shards have changed.

    `modules` are its `sharded_modules`, where they are known: to look for them takes as long as a small pass.
    """
    for module in sharded_modules(model) if modules is None else modules:
        module.reshard()


def shares_examples(model: nn.Module) -> bool:
    """Whether parameters are split beyond FSDP2, as in tensor parallelism: then ranks work on the same examples."""
    reshard(model)
    fsdp = bool(sharded_modules(model))
    splits = [
        sum(not placement.is_replicate() for placement in getattr(p, "placements", ())) for p in model.parameters()
    ]
    return max(splits, default=0) > fsdp


def check_switches(class_axis: Any, late: Any, **truths: Any) -> None:
    """Complain about what is neither on nor off, and Python would take for one of them."""
    if not (class_axis is None or (isinstance(class_axis, int) and class_axis in (-1, 1))):
        raise InputError(
            f"class_axis must be -1 (the classes are the last axis of the logits) or 1, not {show(class_axis)}"
        )
    if not isinstance(late, bool | torch.dtype):
        raise InputError(f"late must be True, False or the dtype of the softmax, not {show(late)}")
    for name, value in truths.items():
        as_truth(name, value)


def check_settings(every: Any, levels: Any, degree: Any, has_names: bool) -> None:
    """Complain about settings of a monitor that are not of their types, or out of range."""
    if not isinstance(every, int | np.integer) or isinstance(every, bool) or every < 1:
        raise InputError(f"every must be a whole number of at least 1, not {show(every)}")
    listed = isinstance(levels, Iterable) and not isinstance(levels, str | bytes | Iterator)
    listed = listed and getattr(levels, "ndim", 1) == 1
    if not listed or not all(isinstance(level, int | float | np.number) and 0 <= level <= 1 for level in levels):
        raise InputError(f"levels are a list of shares of the examples, from 0 to 1, not {show(levels)}")
    if degree is not None and not (isinstance(degree, int | np.integer) and degree >= 1 and has_names):
        raise InputError(
            "degree is a positive number that goes with names of parameters; leave it out to have it found"
        )


def check_model(model: nn.Module) -> None:
    """Complain about parameters that have no values."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the monitor watches a torch.nn.Module, not {type(model).__name__}")
    if any(kind.__name__ == "FullyShardedDataParallel" for module in model.modules() for kind in type(module).__mro__):
        raise InputError(
            "FullyShardedDataParallel (FSDP1) keeps flat parameters, whose parts have no norms of their own; shard the model "
            "with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
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
    """eval mode and no gradients inside; every module's own mode, buffers, which a forward pass may change in any mode, and the
    random states of torch, numpy and Python as before afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    device = device_of(model)
    caching = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # it keeps casts of the weights, from before they are scaled
    try:
        model.eval()
        with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []), torch.no_grad():
            yield
    finally:
        torch.set_autocast_cache_enabled(caching)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for module, mode in modes:
            module.training = mode
        for buffer, old in kept:
            buffer.data.copy_(old)


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
        key = _label_key(batch)
        if key is None:
            raise InputError(
                f"the batch has no labels, only {', '.join(map(str, batch))}; give forward=, a function of model and batch"
            )
        logits = logits_of(call(model, batch))
        return shifted(logits, batch[key]) if is_causal(model) else (logits, batch[key])
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return logits_of(call(model, batch)), batch[1]
    raise InputError(
        f"a batch must be a pair (inputs, targets) or a mapping with labels, not {_kind(batch)}; "
        "give forward=, a function of model and batch that returns logits and targets"
    )


def call(model: nn.Module, batch: Any) -> Any:
    """What the model returns for a batch: inputs, a pair (inputs, targets), or a mapping with or without `labels`."""
    if isinstance(batch, Mapping):
        return model(**{k: v for k, v in batch.items() if k != _label_key(batch)})
    if isinstance(batch, tuple | list):
        if len(batch) not in (1, 2):
            raise InputError(f"a batch must be inputs, or a pair (inputs, targets), not {_kind(batch)}; give forward=")
        return model(batch[0])
    return model(batch)


def _label_key(batch: Mapping[str, Any]) -> str | None:
    return next((k for k in LABELS if k in batch), None)


def logits_of(output: Any) -> Tensor:
    """The logits in what a model returned."""
    if isinstance(output, Tensor):
        return output
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise InputError(
        f"the model returned {_kind(output)} and not logits; give forward=, a function of model and batch that returns logits "
        "and targets"
    )


def is_causal(model: nn.Module) -> bool:
    """Whether this is a causal language model of `transformers`, whose labels are its inputs."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def is_encoder_decoder(model: nn.Module) -> bool:
    """Whether this is a model of `transformers` that makes its decoder's inputs from the labels."""
    return bool(getattr(getattr(unwrap(model), "config", None), "is_encoder_decoder", False))


def shifted(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return logits[:, :-1], labels[:, 1:]


def _kind(thing: Any) -> str:
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}"
    return f"a {type(thing).__name__}"


def names_of(asked: Any, model: nn.Module) -> tuple[str, ...]:
    """Names of parameters that were given, or a function of the model returns; complains of those that there are not."""
    inner = unwrap(model)
    known = dict(inner.named_parameters())
    names = asked(inner) if callable(asked) else asked
    if (
        isinstance(names, str)
        or not isinstance(names, Iterable)
        or getattr(names, "ndim", 1) != 1
        or not (names := tuple(dict.fromkeys(names)))
    ):
        raise InputError('homogeneous must be "auto", a list of names of parameters or a function of the model')
    unknown = [name for name in names if name not in known]
    if unknown:
        every = dict(inner.named_parameters(remove_duplicate=False))
        if unknown[0] in every:
            first = next(name for name, p in known.items() if p is every[unknown[0]])
            raise InputError(f"the parameter {unknown[0]!r} is shared; it is called {first!r} here")
        some = ", ".join(list(known)[-3:])
        raise InputError(f"the model has no parameter {unknown[0]!r}; its last ones are {some}")
    return names


def place_of(model: nn.Module, name: str) -> tuple[Mapping[str, Any], str, str]:
    """Of a parameter: the layers that its own is one of, that layer's name there, and the parameter's."""
    path, _, last = name.rpartition(".")
    above, _, layer = path.rpartition(".")
    return (model.get_submodule(above)._modules, layer, last) if path else ({"": model}, "", last)


def batches_of(data: Any) -> Iterable[Any]:
    """A loader's batches, or the one batch given: a mapping, or a pair whose second part is a tensor."""
    if isinstance(data, Mapping) or (isinstance(data, tuple | list) and len(data) == 2 and isinstance(data[1], Tensor)):
        return [data]
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise InputError(f"measure needs a loader or a batch with targets, not a {type(data).__name__}")
    return data


# ---------------------------------------------------------------- norms


def squares(parameters: Sequence[Tensor], world: int = 1) -> Tensor:
    """This rank's share of the sum of squares, in float64: over all `world` ranks the shares sum to the whole.

    A parameter that several ranks hold alike is divided by their number; of a sharded one (FSDP2) each rank counts its shard.
    """
    parts = [local_part(p.detach(), world) for p in parameters]
    if len({local.device for local, _ in parts}) == 1 and parts[0][0].is_cuda:  # two kernels instead of three for each
        values = torch.stack(torch._foreach_norm([local for local, _ in parts], 2, torch.float64)).square()
        return (values / values.new_tensor([copies for _, copies in parts])).sum()
    total = torch.zeros((), dtype=torch.float64)
    for local, copies in parts:
        for piece in local.reshape(-1).split(PIECE):
            wide = piece.double()
            total = total.to(wide.device) + torch.dot(wide, wide) / copies
    return total


def norms(parameters: Sequence[Tensor], world: int = 1) -> Norms:
    """Norm of what this rank holds of each parameter, in few kernels, and on how many ranks the same is held.

    In the parameters' own precision, at least float32: for every step of training, where `squares` would be too dear. Call it
    without gradients: to detach each parameter would take as long again.
    """
    parts = [local_part(p, world) for p in parameters]
    return Norms(lengths([part for part, _ in parts], 2), [copies for _, copies in parts])


def lengths(tensors: list[Tensor], order: float) -> Sequence[Tensor]:
    """The l2 norm or the largest entry (order 2 or inf) of each, at least in float32; one call for all of a type."""
    types = {tensor.dtype for tensor in tensors}
    if len(tensors) == 1:  # on a GPU half as long
        return [torch.linalg.vector_norm(tensors[0], order, dtype=None if types <= WIDE else torch.float32)]
    if len(types) == 1:  # on whichever devices
        return torch._foreach_norm(tensors, order, None if types <= WIDE else torch.float32)
    found: dict[int, Tensor] = {}
    for members in _of_a_kind(tensors):
        found |= zip(members, lengths([tensors[k] for k in members], order))
    return [found[k] for k in range(len(tensors))]


def _of_a_kind(tensors: Sequence[Tensor]) -> Iterable[list[int]]:
    """Numbers of the tensors of each device and type."""
    alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for k, tensor in enumerate(tensors):
        alike.setdefault((tensor.device, tensor.dtype), []).append(k)
    return alike.values()


def squared(held: Sequence[Norms], weights: Sequence[float] | None = None, world: int = 1) -> Tensor:
    """(S,) sums of squares over the parameters, divided by `weights` (1), on the CPU; one wait for the device.

    Of `world` ranks this one's share: over all of them the shares sum to the whole.
    """
    values = on_host([length for norms in held for length in norms.lengths])
    shares = [
        copies * weight
        for norms in held
        for _, copies, weight in zip(norms.lengths, norms.copies or repeat(world), weights or repeat(1.0))
    ]
    step = torch.tensor([k for k, norms in enumerate(held) for _ in norms.lengths], dtype=torch.int64)
    over = values.square() / torch.tensor(shares, dtype=torch.float64)
    return torch.zeros(len(held), dtype=torch.float64).index_add(0, step, over)


def on_host(values: Sequence[Tensor | Sequence[float]]) -> Tensor:
    """Tensors of one shape, stacked, in float64 on the CPU; one call and one wait for each device and type."""
    tensors = [value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64) for value in values]
    if not tensors:
        return torch.zeros(0, dtype=torch.float64)
    found = torch.empty(len(tensors), *tensors[0].shape, dtype=torch.float64)
    for members in _of_a_kind(tensors):
        found[members] = torch.stack([tensors[k] for k in members]).to("cpu").double()
    return found


def local_part(p: Tensor, world: int) -> tuple[Tensor, float]:
    """What this rank holds of a parameter, and how many ranks hold the same."""
    placements = getattr(p, "placements", None)
    if placements is None:
        return p, world
    mesh = p.device_mesh  # type: ignore[attr-defined]
    sharded = math.prod(mesh.size(k) for k, placement in enumerate(placements) if not placement.is_replicate())
    return p.to_local(), world / sharded  # type: ignore[attr-defined]


def blocks(names: Sequence[str]) -> dict[str, list[str]]:
    """Parameters by the part of the model they are in: up to the first number of their name, else their module.

    model.layers.0.self_attn.q_proj.weight is in model.layers.0, lm_head.weight in lm_head.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split(".")
        cut = next((k + 1 for k, part in enumerate(parts) if part.isdigit()), max(1, len(parts) - 1))
        groups.setdefault(".".join(parts[:cut]), []).append(name)
    return groups


# ---------------------------------------------------------------- as it was before


@contextmanager
def same_draws(data: Any) -> Iterator[None]:
    """Random states that batches are drawn with, apart from torch's own, are as before afterwards."""
    parts = [data, getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None)]
    generators = {id(g): g for part in parts if isinstance(g := getattr(part, "generator", None), torch.Generator)}
    states = [(g, g.get_state()) for g in generators.values()]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)


@contextmanager
def as_it_is(model: nn.Module) -> Iterator[None]:
    """The same with modules in the modes they are in."""
    modes = [(module, module.training) for module in model.modules()]
    with evaluating(model):
        for module, mode in modes:
            module.training = mode
        yield
