"""The network and the training loop of MT's Table 1: a wide residual network without batch normalisation (MT-34).

The paper does not say how wide its 16 layers are nor how they were kept stable without batch normalisation. Here: widen factor
`widen`, and the initialisation of Zhang, Dauphin and Ma (Fixup, 2019): the second convolution of every residual branch and the
classifier start at 0, the first convolution is divided by the square root of the number of blocks, and scalar biases and one
scalar factor a branch stand where normalisation stood. Every block is the identity at the start, so that a step of size 0.1
moves the output by an amount that does not grow with depth. Weight decay applies to the weights of layers, not to these
scalars.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from widemargin.data.files import read_npz
from widemargin.disk import make_folders
from widemargin.flows.rules import learning_rate_schedule, weight_decay_schedule
from widemargin.types import InputError, content_hash, write_atomically

VARIABLE = {"cifar10": "WIDEMARGIN_CIFAR10_FULL", "cifar100": "WIDEMARGIN_CIFAR100_FULL"}
CLASSES = {"cifar10": 10, "cifar100": 100}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training pixels / 255
CLIP = 5.0  # largest gradient norm: a guard for the first steps, far above what training has later


def cifar(dataset: str = "cifar10", path: str | os.PathLike[str] | None = None) -> dict[str, np.ndarray]:
    """All of CIFAR-10 or CIFAR-100: train_images (50000, 32, 32, 3) uint8, train_labels, test_images, test_labels.

    The path, or the environment variable WIDEMARGIN_CIFAR10_FULL (or ..._CIFAR100_FULL), is an .npz with these four arrays or a
    folder with cifar10_train_0.npz to cifar10_train_4.npz and cifar10_test.npz, each with `images` and `labels`.
    """
    variable = VARIABLE[dataset]
    given = os.environ.get(variable) if path is None else path
    if not given:
        title = dataset.upper().replace("CIFAR", "CIFAR-")
        raise InputError(
            f"Table 1 needs all of {title}, which does not come with the package; set the environment variable {variable} "
            "to an .npz with train_images, train_labels, test_images and test_labels"
        )
    names = ("train_images", "train_labels", "test_images", "test_labels")
    if Path(given).is_dir():
        train = [read_npz(Path(given) / f"{dataset}_train_{k}.npz", ("images", "labels")) for k in range(5)]
        test = read_npz(Path(given) / f"{dataset}_test.npz", ("images", "labels"))
        parts = [np.concatenate([file[what] for file in train]) for what in ("images", "labels")]
        arrays = dict(zip(names, (*parts, test["images"], test["labels"])))
    else:
        arrays = read_npz(given, names)
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.shape != images.shape[:1]:
            raise InputError(f"{variable}: {part}_images must be uint8 of shape (n, 32, 32, 3) with one label for each")
        if labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(CLASSES[dataset])).all():
            raise InputError(f"{variable}: {part}_labels must be integers from 0 to {CLASSES[dataset] - 1}")
    return arrays


def shrink(images: dict[str, np.ndarray], train: int, test: int, seed: int) -> dict[str, np.ndarray]:
    """A random part of the images; all of them in their order where there are no more."""
    fewer: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("test", test)):
        size = len(images[f"{part}_labels"])
        rows = np.arange(size) if count >= size else np.random.default_rng([seed, count]).permutation(size)[:count]
        fewer |= {f"{part}_{what}": images[f"{part}_{what}"][rows] for what in ("images", "labels")}
    return fewer


def digest(images: dict[str, np.ndarray]) -> str:
    return content_hash(*(images[f"{part}_{what}"] for part in ("train", "test") for what in ("images", "labels")))


# ---------------------------------------------------------------- the network


class Scalar(nn.Module):
    """x + bias, one number for all entries."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias.to(x.dtype)


class Block(nn.Module):
    """x + factor conv(relu(conv(relu(x)))), with scalar biases before each convolution and each relu."""

    def __init__(self, inside: int, outside: int, stride: int, blocks: int):
        super().__init__()
        self.biases = nn.ModuleList(Scalar() for _ in range(4))
        self.factor, self.last = nn.Parameter(torch.ones(1)), Scalar()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        same = inside == outside and stride == 1
        self.shortcut = None if same else nn.Conv2d(inside, outside, 1, stride, bias=False)
        nn.init.normal_(self.first.weight, std=math.sqrt(2 / (9 * outside)) / math.sqrt(blocks))
        nn.init.zeros_(self.second.weight)
        if self.shortcut is not None:
            nn.init.normal_(self.shortcut.weight, std=math.sqrt(2 / outside))

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.biases[0](x))
        branch = self.first(self.biases[1](active))
        branch = self.second(self.biases[3](functional.relu(self.biases[2](branch))))
        straight = x if self.shortcut is None else self.shortcut(active)
        return straight + self.last(branch * self.factor.to(branch.dtype))


class WideResNet(nn.Module):
    """Three groups of `depth - 4` / 6 blocks with 16, 32, 64 times `widen` channels (Zagoruyko and Komodakis, 2016)."""

    def __init__(self, depth: int = 16, widen: int = 4, classes: int = 10):
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"the depth of a wide residual network is 6 k + 4, like 16; {depth} is not")
        each = (depth - 4) // 6
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.begin = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        nn.init.normal_(self.begin.weight, std=math.sqrt(2 / (9 * 16)))
        blocks = [
            Block(widths[g] if k == 0 else widths[g + 1], widths[g + 1], 2 if g > 0 and k == 0 else 1, 3 * each)
            for g in range(3)
            for k in range(each)
        ]
        self.blocks, self.bias = nn.Sequential(*blocks), Scalar()
        self.end = nn.Linear(widths[-1], classes)
        nn.init.zeros_(self.end.weight)
        nn.init.zeros_(self.end.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.blocks(self.begin(x)))
        return self.end(self.bias(x.mean((2, 3))))

    def decayed(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Weights of layers, which decay, and scalars and biases, which do not."""
        parts = list(self.parameters())
        return [p for p in parts if p.ndim > 1], [p for p in parts if p.ndim <= 1]


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class Plan:
    """One arm of Table 1. The schedules are those of 200 epochs; with fewer epochs they are run through in proportion."""

    annealed: bool
    epochs: int = 200
    depth: int = 16
    widen: int = 4
    batch: int = 128
    momentum: float = 0.9
    dataset: str = "cifar10"
    seed: int = 0
    images: str = ""  # their hash, so that a checkpoint of other images is not gone on with

    def rates(self, epoch: int) -> tuple[float, float]:
        """Learning rate and weight decay of an epoch (MT-34)."""
        at = epoch if self.epochs == 200 else math.floor(200 * epoch / self.epochs)
        return learning_rate_schedule(at), weight_decay_schedule(at if self.annealed else 0, self.dataset)


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop after padding by 4, and a mirror image half of the time, for a batch (k, 3, 32, 32)."""
    k, _, size, _ = images.shape
    where = images.device
    padded = functional.pad(images, (4, 4, 4, 4))
    top, left = torch.randint(0, 9, (2, k), generator=generator, device=where)
    flip = torch.rand(k, generator=generator, device=where) < 0.5
    rows = top[:, None] + torch.arange(size, device=where)  # (k, 32)
    columns = torch.arange(size, device=where).expand(k, -1)
    columns = left[:, None] + torch.where(flip[:, None], size - 1 - columns, columns)
    index = torch.arange(k, device=where)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train(
    plan: Plan,
    images: dict[str, np.ndarray],
    device: str,
    checkpoint: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, np.ndarray]:
    """Train one arm: per epoch training loss, test error, seconds, rate and decay. Resumes from `checkpoint` after any epoch.

    Order and augmentation of an epoch depend on (seed, epoch) alone. On a GPU in bfloat16 with channels last, weights in float32.
    """
    where = torch.device(device)
    gpu = where.type == "cuda"
    with torch.random.fork_rng(devices=[]):  # the global generator stays as it was
        torch.manual_seed(plan.seed)
        model = WideResNet(plan.depth, plan.widen, CLASSES[plan.dataset])
    model = model.to(where, memory_format=torch.channels_last)  # type: ignore[call-overload]
    heavy, light = model.decayed()
    optimizer = torch.optim.SGD(
        [{"params": heavy}, {"params": light, "weight_decay": 0.0, "light": True}],
        lr=0.1,
        momentum=plan.momentum,
        nesterov=True,
    )
    points = {part: _pixels(images[f"{part}_images"], where) for part in ("train", "test")}
    labels = {part: torch.tensor(images[f"{part}_labels"].astype(np.int64), device=where) for part in ("train", "test")}
    history, begin = _restore(checkpoint, plan, model, optimizer, where)
    step = Stepper(model, optimizer, gpu)
    for epoch in range(begin, plan.epochs):
        started = time.perf_counter()
        lr, decay = plan.rates(epoch)
        if epoch and (lr, decay) != plan.rates(epoch - 1):
            step.reset()
        for group in optimizer.param_groups:
            group["lr"], group["weight_decay"] = lr, 0.0 if group.get("light") else decay
        loss = _epoch(step, points["train"], labels["train"], plan, epoch)
        error = error_rate(model, points["test"], labels["test"], gpu)
        history.append([loss, error, time.perf_counter() - started, lr, decay])
        if checkpoint is not None:
            _save(checkpoint, plan, model, optimizer, history)
        if epoch % 10 == 9 or epoch == plan.epochs - 1:
            say(f"epoch {epoch + 1} of {plan.epochs}: loss {loss:.4f}, test error {100 * error:.2f} %")
    columns = np.array(history, dtype=np.float64).T
    return dict(zip(("loss", "error", "seconds", "lr", "decay"), columns))


def _pixels(images: np.ndarray, where: torch.device) -> Tensor:
    """(n, 3, 32, 32), each colour with mean 0 and deviation 1 over CIFAR-10."""
    mean, deviation = (torch.tensor(v, device=where).view(1, 3, 1, 1) for v in (MEAN, DEVIATION))
    x = torch.tensor(images, device=where).permute(0, 3, 1, 2).float() / 255
    return ((x - mean) / deviation).to(torch.bfloat16 if where.type == "cuda" else torch.float32)


class Stepper:
    """One step of training on a batch. On a GPU a step is recorded after a few ordinary ones and replayed as a CUDA graph: at
    batches of 128 the host's hundreds of launches a step would take several times as long as the kernels themselves. Rate and
    decay are fixed in the recording, so `reset` drops it when they change.
    """

    WARM = 5  # ordinary steps before recording

    def __init__(self, model: WideResNet, optimizer: torch.optim.SGD, gpu: bool):
        self.model, self.optimizer, self.gpu = model, optimizer, gpu
        self.reset()

    def reset(self) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None
        self.taken = 0

    def __call__(self, batch: Tensor, labels: Tensor) -> Tensor:
        """The loss before the step, a scalar on the device."""
        if not self.gpu:
            return self._step(batch, labels)
        if self.graph is None and self.taken == self.WARM:
            self.batch, self.labels = batch.clone(memory_format=torch.preserve_format), labels.clone()
            self.optimizer.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.loss = self._step(self.batch, self.labels)
        self.taken += 1
        if self.graph is None:
            side = torch.cuda.Stream()  # recording needs gradients that were not made on the default stream
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self._step(batch, labels)
            torch.cuda.current_stream().wait_stream(side)
            return loss
        self.batch.copy_(batch)
        self.labels.copy_(labels)
        self.graph.replay()
        return self.loss

    def _step(self, batch: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=self.gpu):
            loss = functional.cross_entropy(self.model(batch).float(), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()


def _epoch(step: Stepper, X: Tensor, y: Tensor, plan: Plan, epoch: int) -> float:
    """One pass over the data; the mean training loss."""
    step.model.train()
    generator = torch.Generator(X.device).manual_seed(plan.seed * 100_003 + epoch)
    order = torch.randperm(len(X), generator=generator, device=X.device)
    total = torch.zeros((), device=X.device)
    count = max(1, len(X) // plan.batch)  # the last, smaller batch is left out, as is usual
    for k in range(count):
        rows = order[k * plan.batch : (k + 1) * plan.batch]
        batch = augment(X[rows], generator).contiguous(memory_format=torch.channels_last)
        total += step(batch, y[rows])
    return float(total) / count


@torch.no_grad()
def error_rate(model: WideResNet, X: Tensor, y: Tensor, gpu: bool) -> float:
    """Share of images that are misclassified."""
    model.eval()
    wrong = torch.zeros((), device=X.device)
    for k in range(0, len(X), 1000):
        batch = X[k : k + 1000].contiguous(memory_format=torch.channels_last)
        with torch.autocast(X.device.type, torch.bfloat16, enabled=gpu):
            wrong += (model(batch).argmax(1) != y[k : k + 1000]).sum()
    return float(wrong) / len(X)


def _save(path: Path, plan: Plan, model: nn.Module, optimizer: torch.optim.SGD, history: list[list[float]]) -> None:
    content = io.BytesIO()
    state = {"plan": asdict(plan), "model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}
    torch.save(state, content)
    make_folders(path.parent)
    write_atomically(path, content.getvalue())


def _restore(
    path: Path | None, plan: Plan, model: nn.Module, optimizer: torch.optim.SGD, where: torch.device
) -> tuple[list[list[float]], int]:
    """History and first epoch to do; nothing and 0 where there is no checkpoint of this plan."""
    if path is None or not path.is_file():
        return [], 0
    try:
        kept = torch.load(path, map_location=where, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError):
        return [], 0  # damaged: begin again
    if kept["plan"] != asdict(plan):
        return [], 0
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    return kept["history"], len(kept["history"])
