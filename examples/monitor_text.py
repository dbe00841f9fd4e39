"""Which library does a sentence of documentation come from? Margins of a transformer block with a final norm and a head.

    python examples/monitor_text.py [--out monitor_text] [--epochs 80] [--n 600] [--quick]

The texts lie in packages that widemargin needs anyway: the first sentences of docstrings of scipy, torch and matplotlib,
read from their source files. Sentences for the test come from other files than those for training. Padding is masked.
The output is homogeneous of degree 2 in the gain and shift of the last LayerNorm and the head, and in nothing else.
"""

import argparse
import ast
import importlib.util
import math
import random
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from widemargin import InputError, plots
from widemargin.monitor import MarginMonitor, Record, falls

LIBRARIES = ("scipy", "torch", "matplotlib")
LENGTH = 16  # words of a sentence that are read
PADDING, UNKNOWN = 0, 1
BATCH = 50
WORD = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]")
DECAY = {"Adam": 0.0, "Adam, weight decay": 0.1}
COLOURS = dict(zip(DECAY, (plots.PLUS, plots.MINUS)))


def sentences(library: str, count: int, seed: int) -> list[list[tuple[str, ...]]]:
    """First sentences of docstrings, in lower-case words, file by file in a random order, until there are enough."""
    spec = importlib.util.find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise InputError(f"{library} is not installed; its docstrings are the texts of this example")
    root = Path(spec.submodule_search_locations[0])
    files = sorted(f for f in root.rglob("*.py") if not {"tests", "testing"} & set(f.relative_to(root).parts))
    random.Random(seed).shuffle(files)
    found: list[list[tuple[str, ...]]] = []
    for file in files:
        if sum(map(len, found)) >= count:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes in other people's strings
            try:
                nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
            except (SyntaxError, UnicodeDecodeError):
                continue
        named = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
        texts = [ast.get_docstring(node) or "" for node in named]
        first = [re.split(r"\.\s|\n\s*\n", text.strip() + "\n\n")[0] for text in texts]
        words = [tuple(WORD.findall(text.lower())[:LENGTH]) for text in first]
        found.append([one for one in words if len(one) >= 4])
    return found


def data(count: int, seed: int) -> tuple[list[tuple[str, ...]], list[int], list[tuple[str, ...]], list[int]]:
    """Sentences and libraries, for training (two thirds of the files of each library) and for the test; each sentence once."""
    seen: dict[tuple[str, ...], int] = {}
    parts: tuple[list[tuple[tuple[str, ...], int]], ...] = ([], [])
    for label, library in enumerate(LIBRARIES):
        taken = 0
        for file in sentences(library, 2 * count // len(LIBRARIES), seed):
            taken += len(file)
            part = parts[taken > 4 * count // (3 * len(LIBRARIES))]
            for one in file:
                if one not in seen:
                    seen[one] = label
                    part.append((one, label))
    rng = random.Random(seed)
    chosen = [rng.sample(part, min(len(part), most)) for part, most in zip(parts, (count, count // 2))]
    (texts, labels), (test_texts, test_labels) = (zip(*part) for part in chosen)
    return list(texts), list(labels), list(test_texts), list(test_labels)


def numbers(texts: Sequence[tuple[str, ...]], vocabulary: dict[str, int]) -> Tensor:
    """(N, LENGTH), padded."""
    rows = [[vocabulary.get(word, UNKNOWN) for word in text] for text in texts]
    return torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows])


class Reader(nn.Module):
    """Embeddings, one transformer block, the mean over the words that are there, LayerNorm, a head without bias."""

    def __init__(self, words: int, classes: int, width: int = 32):
        super().__init__()
        self.word = nn.Embedding(words, width, padding_idx=PADDING)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        there = tokens != PADDING
        h = self.block(self.word(tokens) + self.place, src_key_padding_mask=~there)
        return self.head(self.norm((h * there[..., None]).sum(1) / there.sum(1, keepdim=True)))


def picture(runs: dict[str, list[Record]], title: str) -> Figure:
    figure = Figure(figsize=(13.2, 4.1), dpi=100, layout="constrained")
    smooth, errors, levels = axes = figure.subplots(1, 3)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9)
        one.set_xlabel("epoch")
    for name, records in runs.items():
        on, off = ([r for r in records if r.name == part and r.step > 0] for part in ("train", "test"))
        epochs, colour = [r.step for r in on], COLOURS[name]
        values = [r.psi_normalized if r.fitted else math.nan for r in on]
        smooth.plot(epochs, values, color=colour, lw=1.7, label=name)
        errors.plot(epochs, [100 * r.error for r in on], color=colour, lw=1.2, ls=":")
        errors.plot(epochs, [100 * r.error for r in off], color=colour, lw=1.7, label=name)
        for part, style, label in ((on, "-", "training"), (off, "--", "test")):
            for level, width in ((0.1, 1.0), (0.5, 1.9)):
                value = [r.quantiles_normalized[level] for r in part]
                said = f"{label}, {name}" if level == 0.5 else None
                levels.plot([r.step for r in part], value, color=colour, lw=width, ls=style, label=said)
    smooth.axhline(0, color=plots.QUIET, lw=0.7)
    levels.axhline(0, color=plots.QUIET, lw=0.7)
    errors.set_ylim(-1, 1.25 * errors.dataLim.y1)
    smooth.set_title("psi / |w_hat|$^2$ of the training set, where psi > 0", loc="left", fontsize=10.5)
    errors.set_title("Error in %: test (solid), training (dotted)", loc="left", fontsize=10.5)
    levels.set_title("Margins / |w_hat|$^2$: median (thick), 10 % (thin)", loc="left", fontsize=10.5)
    low, high = levels.get_ylim()
    levels.set_ylim(top=high + 0.25 * (high - low))  # room for the legend
    smooth.legend(frameon=False, fontsize=8.5, loc="upper left")
    errors.legend(frameon=False, fontsize=8.5, loc="upper right")
    levels.legend(frameon=False, fontsize=8, loc="upper left", ncols=2, columnspacing=1, handlelength=1.6)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("monitor_text"), help="folder of records and picture")
    parser.add_argument("--n", type=int, default=600, help="training sentences, at most [600]")
    parser.add_argument("--epochs", type=int, default=80, help="[80]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda [cpu]")
    parser.add_argument("--quick", action="store_true", help="150 sentences, 20 epochs")
    options = parser.parse_args()
    if options.quick:
        options.n, options.epochs = 150, 20
    texts, labels, test_texts, test_labels = data(options.n, options.seed)
    vocabulary = {word: k for k, word in enumerate(dict.fromkeys(w for t in texts for w in t), UNKNOWN + 1)}
    device = options.device
    tokens, y = numbers(texts, vocabulary).to(device), torch.tensor(labels).to(device)
    test = (numbers(test_texts, vocabulary).to(device), torch.tensor(test_labels).to(device))
    runs: dict[str, list[Record]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        for label, decay in DECAY.items():
            task = progress.add_task(label, total=options.epochs)
            torch.manual_seed(options.seed)
            model = Reader(len(vocabulary) + 2, len(LIBRARIES)).to(device)
            optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=decay)
            folder = options.out / label.replace(", ", "-").replace(" ", "-").lower()
            with MarginMonitor(model, homogeneous="auto", out=folder) as monitor:
                for epoch in range(options.epochs + 1):
                    last = monitor.measure((tokens, y), "train", step=epoch)
                    monitor.measure(test, "test", step=epoch)
                    if epoch == options.epochs:
                        break
                    for rows in torch.randperm(len(y)).to(device).split(BATCH):
                        loss = cross_entropy(model(tokens[rows]), y[rows])
                        optimiser.zero_grad()
                        loss.backward()
                        optimiser.step()
                    progress.advance(task)
            runs[label] = monitor.records
            if label == "Adam":
                found, hardest = monitor.homogeneous, last.hardest[:3]
    print(found)
    table = Table(title=f"{len(y)} sentences of {len(LIBRARIES)} libraries, {len(test[1])} for the test")
    for heading in (
        "",
        "error 0 at",
        "psi > 0 at",
        "psi/|w|^2 then",
        "at the end",
        "falls",
        "deepest",
        "last",
        "test error",
    ):
        table.add_column(heading, justify="right" if heading else "left")
    for label, records in runs.items():
        on = [r for r in records if r.name == "train"]
        fitted = next((r for r in on if r.fitted), None)
        fell = falls(on)
        table.add_row(
            label,
            next((str(r.step) for r in on if r.error == 0), "never"),
            str(fitted.step) if fitted else "never",
            f"{fitted.psi_normalized:.3g}" if fitted else "",
            f"{on[-1].psi_normalized:.3g}",
            f"{fell.count} of {fell.pairs}",
            f"{fell.deepest:.1%}",
            str(fell.last or ""),
            f"{records[-1].error:.1%}",
        )
    Console(width=120).print(table)
    print("training sentences with the smallest margins (Adam):")
    for k in hardest:
        print(f"  {LIBRARIES[labels[k]]}: {' '.join(texts[k])}")
    target = options.out / "monitor_text.png"
    picture(runs, f"Which library is a sentence from? One transformer block, {len(y)} sentences").savefig(target)
    print(f"records in {options.out}, picture in {target}")
    return 0


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
