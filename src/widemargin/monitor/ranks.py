"""What the ranks of torch.distributed tell one another. With one process nothing is sent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from widemargin.types import InputError

Make = TypeVar("Make", bound=Callable[..., None])


def world() -> int:
    ready = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if ready else 1


def rank() -> int:
    return torch.distributed.get_rank() if world() > 1 else 0


def everyone(value: Any) -> list[Any]:
    """Every rank's value, by rank."""
    answers: list[Any] = [None] * world()
    if len(answers) == 1:
        return [value]
    torch.distributed.all_gather_object(answers, value)
    return answers


def one_for_all(value: Any, source: int = 0) -> Any:
    """The value of rank `source`."""
    if world() == 1:
        return value
    shared = [value]
    torch.distributed.broadcast_object_list(shared, source)
    return shared[0]


def stacked(mine: Tensor) -> Tensor:
    """(R, ...): every rank's tensor, which must have the same shape everywhere. It may come back on another device."""
    mine = mine.to(_device(mine.device)).contiguous()
    parts = [torch.empty_like(mine) for _ in range(world())]
    torch.distributed.all_gather(parts, mine)
    return torch.stack(parts)


def _device(device: torch.device) -> torch.device:
    """Where NCCL can fetch it, for parameters that are kept on the CPU."""
    if device.type == "cpu" and torch.distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return device


def fail_together(problem: Exception | None) -> None:
    """If any rank has a problem, raise on all: the same sentence where it is bad input, else what happened and where."""
    if world() == 1:
        if problem is not None:
            raise problem
        return
    bad = isinstance(problem, InputError)
    said = everyone(None if problem is None else (bad, str(problem) if bad else f"{type(problem).__name__}: {problem}"))
    first = next((k for k, word in enumerate(said) if word is not None), None)
    if first is None:
        return
    if problem is not None and not bad:
        raise problem
    is_input, text = said[first]
    raise InputError(f"{text} (rank {first})") if is_input else RuntimeError(f"rank {first} failed: {text}")


def together(describe: Callable[[Any], dict[str, Any]]) -> Callable[[Make], Make]:
    """For `__init__`: an object is made on all ranks or on none, and alike in what `describe` says of it."""

    def decorate(make: Make) -> Make:
        @functools.wraps(make)
        def wrapped(self: Any, *args: Any, **options: Any) -> None:
            problem: Exception | None = None
            try:
                make(self, *args, **options)
            except Exception as error:
                if world() == 1:
                    raise
                problem = error
            if world() == 1:
                return
            fail_together(problem)
            given = everyone(describe(self))
            for k, part in enumerate(given):
                for what, value in part.items():
                    if value != given[0][what]:
                        raise InputError(
                            f"{what} of the monitor on rank {k} differs from rank 0's; every rank must watch the whole model "
                            "in the same way (stages of a pipeline are not supported)"
                        )

        return cast(Make, wrapped)

    return decorate


def send_buffers(model: nn.Module) -> None:
    """Rank 0's buffers to all ranks of DistributedDataParallel, as its own forward pass would do each time."""
    for module in model.modules():
        if isinstance(module, nn.parallel.DistributedDataParallel) and module.broadcast_buffers:
            for name, buffer in module.module.named_buffers():
                if name not in module.parameters_to_ignore:
                    torch.distributed.broadcast(buffer.detach(), group=module.process_group, group_src=0)
