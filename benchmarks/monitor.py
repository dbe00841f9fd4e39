"""What `monitor.step` adds to a step of training, and what `measure` costs beside a plain forward pass.

    python benchmarks/monitor.py [--device cpu|cuda] [--threads 1] [--rounds 15] [--steps 128] [--only resnet|llama]
                                 [--every 10] [--json FILE] [--quick] [--own] [--find]

Two models, as users train them: a ResNet-18 for 32 x 32 pictures (SGD with momentum) and a Llama of `transformers` (AdamW), on
a GPU under bfloat16 autocast. Each is trained without a monitor, with `monitor.step` at every step, and with every=10; the same
model and optimiser serve all three, so that memory and caches are alike. `monitor.step` comes where the docs have it, between the
backward pass and the step of the optimiser: the GPU still works on what the former launched, so part of it takes no time at all.
"before backward" is the same in front of it.

They take turns, a step each, in an order that changes from step to step, so that what slows the whole machine down cancels; each
step ends with a wait for the device. A monitor sees the time of its own turns alone, since it flushes once a second and would
else do so for every few of its steps. A round is `--steps` steps of each way, flushes included, and its time is divided by that
of the same round's steps without monitor. Shown are medians and quartiles of these ratios, of wall time and of the process's CPU
time; on a CPU that others use the latter is the one to trust. "none, again" is training without monitor once more: what it
differs by is noise. The goal is < 2 % for `monitor.step` at every step.

`measure` is compared with the same forward passes in eval mode without gradients. Then where the time goes within training: the
wall time of the calls of `monitor.step` that do not flush, and of those that do, with the steps between two of them. Last, the
number of calls into torch of one `monitor.step` and of a flush, the least CPU time of both and its share in the least of a step
of training (which noise does not hide), and on a GPU the kernels launched and their time. `--own` adds the same numbers for a
monitor that knows the optimiser (goal < 2 %), for one that also watches late training, and for the mixed norm of Muon (a power
iteration on the head's matrix; goal < 5 %).

`--find` is about the first step alone: the processor time of `find_homogeneous` over that of one forward pass of the batch, for
a ResNet-18 on 16 pictures of 224 x 224, the ResNet above on 32, and a small GPT-2 on 4 texts of 128 tokens. Medians of three;
the goal is at most 10.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from widemargin.monitor import MarginMonitor
from widemargin.monitor import monitor as monitor_file
from widemargin.monitor.monitor import FLUSH

SIZES = {  # of (device, quick)
    ("cuda", False): {
        "resnet": {"width": 64, "batch": 128},
        "llama": {"vocabulary": 32_000, "width": 768, "layers": 12, "heads": 12, "length": 512, "batch": 8},
    },
    ("cpu", False): {
        "resnet": {"width": 16, "batch": 16},
        "llama": {"vocabulary": 2_048, "width": 256, "layers": 4, "heads": 4, "length": 128, "batch": 2},
    },
    ("cpu", True): {
        "resnet": {"width": 4, "batch": 4},
        "llama": {"vocabulary": 64, "width": 16, "layers": 1, "heads": 2, "length": 8, "batch": 2},
    },
}
SIZES[("cuda", True)] = SIZES[("cpu", True)]


EARLIER = "before backward"  # the same monitor at another place in the loop


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inside)) + self.skip(x))


def resnet(width: int) -> nn.Module:
    """ResNet-18 for CIFAR, its head without bias."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for k in range(4):
        for stride in (1 + (k > 0), 1):
            layers.append(Block(channels, width << k, stride))
            channels = width << k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10, bias=False))


def llama(vocabulary: int, width: int, layers: int, heads: int, length: int) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=8 * width // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=length,
        tie_word_embeddings=False,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


@dataclass
class Task:
    """A model, a batch of it, and the optimiser that trains it."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    optimizer: torch.optim.Optimizer
    device: str

    def logits(self) -> Tensor:
        autocast = torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()
        with autocast:
            found = self.model(self.inputs)
        return found if isinstance(found, Tensor) else found.logits

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return self.logits(), self.targets

    def step(self, monitor: MarginMonitor | None, after: bool = True) -> float:
        """A step of training; the seconds that its monitor took, before or `after` the backward pass (as the docs have it)."""
        self.optimizer.zero_grad()
        logits = self.logits()
        loss = F.cross_entropy(logits.flatten(0, -2).float(), self.targets.flatten())
        if after:
            loss.backward()
        began = time.perf_counter()
        if monitor is not None:
            monitor.step(logits=logits, targets=self.targets, loss=loss)
        took = time.perf_counter() - began
        if not after:
            loss.backward()
        self.optimizer.step()
        return took


def task(name: str, device: str, quick: bool) -> Task:
    torch.manual_seed(0)
    size = SIZES[(device, quick)][name]
    batch = size["batch"]
    if name == "resnet":
        model = resnet(size["width"]).to(device)
        inputs, targets = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
        return Task(name, model, inputs, targets, torch.optim.SGD(model.parameters(), 0.01, 0.9), device)
    model = llama(*(size[key] for key in ("vocabulary", "width", "layers", "heads", "length"))).to(device)
    inputs = torch.randint(size["vocabulary"], (batch, size["length"]), device=device)
    targets = F.pad(inputs[:, 1:], (0, 1), value=-100)  # the next token; the last has none
    return Task(name, model, inputs, targets, torch.optim.AdamW(model.parameters(), 1e-4), device)


# ---------------------------------------------------------------- timing


def clocked(run: Callable[[], object], device: str) -> tuple[float, float]:
    """Seconds of wall time and of CPU time, the device's work included in the first."""
    if device == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


class OwnTime:
    """Stands for the module `time` in the monitor: what it shows goes on in the turns of one way alone."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.way, self.began = "", time.perf_counter()

    def turn(self, way: str) -> None:
        self.way, self.began = way, time.perf_counter()

    def over(self) -> None:
        self.spent[self.way] += time.perf_counter() - self.began

    def perf_counter(self) -> float:
        return self.spent[self.way] + time.perf_counter() - self.began


def compare(
    ways: dict[str, Callable[[], object]], device: str, rounds: int, steps: int, clock: OwnTime
) -> dict[str, dict[str, Any]]:
    """Rounds of `steps` turns of every way, in a changing order; the first way is what the others are divided by."""
    names = list(ways)
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            times[name].append([0.0, 0.0])
        for k in range(steps):
            for j in range(len(names)):
                name = names[(k + j) % len(names)]
                clock.turn(name)
                for which, seconds in enumerate(clocked(ways[name], device)):
                    times[name][-1][which] += seconds
                clock.over()
    found = {}
    for name in names:
        found[name] = {"wall_s": quartiles([wall for wall, _ in times[name]])}
        for which, kind in enumerate(("wall", "cpu")):
            ratios = [mine[which] / plain[which] for mine, plain in zip(times[name], times[names[0]])]
            found[name][f"{kind}_ratio"] = quartiles(ratios)
    return found


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3


def inside(one: Task, monitor: MarginMonitor, steps: int, after: bool) -> dict[str, float]:
    """Where the time of a monitor goes within training: microseconds of its calls, wall clock, medians."""
    monitor.flush()
    plain, flushing, last = [], [], monitor._flushed
    for _ in range(steps):
        took = one.step(monitor, after)
        (plain if monitor._flushed == last else flushing).append(1e6 * took)
        last = monitor._flushed
    began = time.perf_counter()
    monitor.flush()
    flushing.append(1e6 * (time.perf_counter() - began))
    return {
        "step_us": statistics.median(plain),
        "flush_us": statistics.median(flushing),
        "steps_per_flush": steps / len(flushing),
    }


class Calls(TorchDispatchMode):
    """Counts the calls into torch, and those that only look at a tensor in another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        self.views += func.is_view
        return func(*args, **(kwargs or {}))

    @property
    def work(self) -> int:
        return len(self.names) - self.views


def count(one: Task, monitor: MarginMonitor) -> dict[str, Any]:
    """Calls into torch of `monitor.step` and of a flush, per step, and what Python needs for them."""
    monitor.flush()
    logits, targets = one.logits().detach(), one.targets
    with Calls() as stepping:
        monitor.step(logits=logits, targets=targets)
    with Calls() as flushing:
        monitor.flush()
    found: dict[str, Any] = {"step_calls": stepping.work, "flush_calls": flushing.work}
    stepped, flushed, trained = [], [], []
    for _ in range(3):
        for _ in range(FLUSH - 1):  # one more would flush by itself
            stepped.append(clocked(lambda: monitor.step(logits=logits, targets=targets), one.device)[1])
            if len(trained) < 30:
                trained.append(clocked(lambda: one.step(None), one.device)[1])
        flushed.append(clocked(monitor.flush, one.device)[1] / (FLUSH - 1))
    found["step_us"], found["flush_us_per_step"] = 1e6 * min(stepped), 1e6 * min(flushed)
    found["share_of_cpu"] = (min(stepped) + min(flushed)) / min(trained)
    if one.device == "cuda":
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            monitor.step(logits=logits, targets=targets)
            torch.cuda.synchronize()
        kernels = [event for event in seen.events() if "Memset" not in event.name]
        found["kernels"] = len(kernels)
        found["kernel_us"] = float(sum(event.device_time_total for event in kernels))
    return found


def measured(one: Task, options: argparse.Namespace) -> dict[str, Any]:
    made = {"every step": 1, EARLIER: 1, f"every={options.every}": options.every}
    clock = OwnTime()
    monitor_file.time = clock  # type: ignore[assignment]
    monitors: dict[str, Any] = {"none": None, "none, again": None}
    for name, every in made.items():
        monitors[name] = MarginMonitor(one.model, every=every, forward=one.forward)
    monitors |= own_monitors(one) if options.own else {}
    for (
        name,
        it,
    ) in monitors.items():  # warm-up: kernels are chosen, homogeneous parameters found, the power iteration starts
        clock.turn(name)
        for _ in range(3):
            one.step(it)
        if it is not None:
            it.flush()
        clock.over()
    found: dict[str, Any] = {"parameters": sum(p.numel() for p in one.model.parameters())}
    ways = {name: partial(one.step, it, name != EARLIER) for name, it in monitors.items()}
    found["training"] = compare(ways, one.device, options.rounds, options.steps, clock)
    found["homogeneous"] = monitors["every step"].homogeneous.summary

    found["batches"] = batches = max(2, options.steps // 4)

    def plain() -> None:
        one.model.eval()
        with torch.no_grad():
            for _ in range(batches):
                one.logits()
        one.model.train()

    data = [(one.inputs, one.targets)] * batches
    ways = {"forward": plain, "measure": lambda: monitors["every step"].measure(data)}
    found["measuring"] = compare(ways, one.device, options.rounds, 1, clock)
    monitor_file.time = time
    watched = {name: it for name, it in monitors.items() if it is not None and it.every == 1}
    found["inside"] = {name: inside(one, it, 2 * options.steps, name != EARLIER) for name, it in watched.items()}
    found["calls"] = {name: count(one, monitor) for name, monitor in watched.items()}
    return found


def own_monitors(one: Task) -> dict[str, MarginMonitor]:
    """Monitors that measure in the optimiser's own norm, on a batch already seen."""
    head = [
        p for name, p in one.model.named_parameters() if p.ndim == 2 and name.endswith(("head.weight", "13.weight"))
    ]
    others = [p for p in one.model.parameters() if not any(p is q for q in head)]
    made = {"own norm": {"optimizer": one.optimizer}, "own norm, late": {"optimizer": one.optimizer, "late": True}}
    if head and hasattr(torch.optim, "Muon"):  # for its geometry alone
        made["Muon's norm"] = {"optimizer": [torch.optim.Muon(head, 1e-3), torch.optim.AdamW(others, 1e-3)]}
    found = {}
    for name, keys in made.items():
        found[name] = MarginMonitor(one.model, forward=one.forward, **keys)
        found[name].find((one.inputs, one.targets))
    return found


# ---------------------------------------------------------------- the first step


def big_resnet() -> nn.Module:
    """ResNet-18 for pictures of 224 x 224 pixels and 1,000 classes."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *list(resnet(64))[3:-1], nn.Linear(512, 1000))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    return GPT2LMHeadModel(GPT2Config(vocab_size=5_000, n_embd=256, n_layer=4, n_head=4, n_positions=256, **ends))


def finding(device: str, quick: bool) -> dict[str, Any]:
    """Seconds of a forward pass and of the search, and what was found."""
    from widemargin.monitor import find_homogeneous

    torch.manual_seed(0)
    made = {
        "ResNet-18, 16 x 224 x 224": (big_resnet, torch.randn(16, 3, 224, 224)),
        "ResNet of width 16, 32 x 32 x 32": (lambda: resnet(16), torch.randn(32, 3, 32, 32)),
        "GPT-2, 4 x 128": (gpt2, torch.randint(5_000, (4, 128))),
    }
    found: dict[str, Any] = {}
    for name, (make, batch) in list(made.items())[2 * quick :]:
        model, batch = make().to(device).eval(), batch.to(device)
        with torch.no_grad():
            passes = [clocked(lambda: model(batch), device)[1] for _ in range(4)][1:]  # noqa: B023, run at once
        searches, summary = [], ""
        for _ in range(3):
            searches.append(clocked(lambda: find_homogeneous(model, batch), device)[1])  # noqa: B023
            summary = summary or find_homogeneous(model, batch).summary
        forward, search = statistics.median(passes), statistics.median(searches)
        found[name] = {"forward": forward, "search": search, "ratio": search / forward, "summary": summary}
        print(f"{name}: a forward pass {forward:.3f} s, the search {search:.2f} s, {search / forward:.1f} passes")
        print(f"  {summary}", flush=True)
    return found


# ---------------------------------------------------------------- the table


def row(name: str, found: dict[str, Any], steps: int) -> str:
    def share(ratios: list[float]) -> str:
        low, middle, high = (100 * (ratio - 1) for ratio in ratios)
        return f"{middle:+6.2f} % [{low:+6.2f}, {high:+6.2f}]"

    milliseconds = 1e3 * found["wall_s"][1] / steps
    return f"  {name:<14} {milliseconds:10.3f} ms   wall {share(found['wall_ratio'])}   cpu {share(found['cpu_ratio'])}"


def show(name: str, found: dict[str, Any], steps: int) -> None:
    print(f"{name}: {found['parameters']:,} parameters; {found['homogeneous']}")
    for way, numbers in found["training"].items():
        print(row(way, numbers, steps))
    for way, numbers in found["measuring"].items():
        print(row(way, numbers, found["batches"]))
    for what, heading in (("inside", "within training"), ("calls", "called again and again")):
        for way, numbers in found[what].items():
            shown = ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            print(f"  {heading}, {way}: {shown}", flush=True)


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=FLUSH, help="of a round; the default is one flush of the monitor")
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--only", choices=("resnet", "llama"))
    parser.add_argument("--quick", action="store_true", help="tiny models: to see that it runs, not for its numbers")
    parser.add_argument("--own", action="store_true", help="norms of the optimiser, too")
    parser.add_argument("--find", action="store_true", help="what the search in the first step costs, and nothing else")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    where = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    print(f"{where}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    if not options.find:
        print("medians [quartiles] of the share added to the steps without monitor of the same round\n", flush=True)
    result: dict[str, Any] = {
        "options": {key: str(value) for key, value in vars(options).items()},
        "where": where,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    if options.find:
        result["find"] = finding(options.device, options.quick)
        if options.json:
            options.json.write_text(json.dumps(result, indent=1))
        return result
    for name in ("resnet", "llama"):
        if options.only in (None, name):
            result[name] = measured(task(name, options.device, options.quick), options)
            show(name, result[name], options.steps)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    main()
