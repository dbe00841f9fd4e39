"""A reproduction: one figure or table of a paper, from settings to verdicts, in a folder of its own.

    @reproduction("cb-2d", paper="CB", shows="Figure 2d: margin against width", quick=60, full=120)
    def reproduce(job: Job) -> Outcome: ...

`run` writes DIR/ID/: the pictures (PNG and PDF), data.npz, settings.json, verdict.json, README.md. What takes long goes through
`job.keep` or `job.train`, which store their results in DIR/ID/kept/, so that a reproduction that was interrupted goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from widemargin import flows
from widemargin.disk import as_folder, check_sums, make_folders
from widemargin.errors import show
from widemargin.types import Dataset, InputError, Trajectory, write_atomically

from .verdicts import Verdict, plain, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMAT = "widemargin-reproduction-1"


SCALES = ("quick", "paper")
Arrays = dict[str, np.ndarray]  # by name, as `Job.keep` gives them


PICTURES: dict[Any, int] = {"savefig.dpi": 150, "pdf.fonttype": 42}  # fonts of type 42: text in a PDF stays text
OTHER = 7919  # added to the seed where a setting was chosen after a look: that seed played no part in the choice


@dataclass(frozen=True)
class Outcome:
    """What a reproduction returns: all that `run` writes to disk.

    `figures` are matplotlib figures by name, `data` arrays by name, of any shapes, (T, B) for records of B trials; `settings` is
    all that is needed to run it again, `verdicts` are those on the claims of the paper, `words` is a paragraph for the README.

    >>> import numpy as np
    >>> from widemargin.papers import Outcome
    >>> outcome = Outcome({}, {"t": np.arange(3)}, settings={"count": 3}, verdicts=[], words="Nothing is claimed.")
    >>> outcome.data["t"].shape
    (3,)
    """

    figures: Mapping[str, Figure]
    data: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    words: str


def silent(text: str) -> None:
    """Where nobody asked what comes next."""


@dataclass
class Job:
    """What a reproduction is given: how large, where, with which seed, and a place for what takes long.

    `scale` is "quick" or "paper". What takes long is kept in `folder` (nowhere if it is None); `say` is called with the name of
    what comes next. `device` and `seed` go to everything that is trained.

    >>> from pathlib import Path
    >>> from widemargin.papers import Job
    >>> job = Job("quick", seed=3, folder=Path("out"))
    >>> job.pick(10, 1000)
    10
    >>> first = job.keep("sums", {"n": 4}, lambda: {"s": sum(range(4))})
    >>> again = job.keep("sums", {"n": 4}, lambda: 1 / 0)  # read, not computed again
    >>> int(first["s"]), int(again["s"])
    (6, 6)
    """

    scale: str = "quick"
    device: str = field(default="cpu", kw_only=True)
    seed: int = 0
    folder: Path | None = None
    say: Callable[[str], None] = silent

    @property
    def quick(self) -> bool:
        """Whether it is the small scale, for a laptop."""
        return self.scale == "quick"

    def pick(self, quick: Any, paper: Any) -> Any:
        """The value for the scale."""
        return quick if self.quick else paper

    def keep(
        self, name: str, key: Mapping[str, Any], compute: Callable[[], Mapping[str, Any]]
    ) -> dict[str, np.ndarray]:
        """Arrays of `compute()`, or those it gave before for the same `key` (everything that the result depends on)."""
        if self.folder is None:
            return {k: np.asarray(v) for k, v in compute().items()}
        text = json.dumps({"key": plain(key), "device": self.device, "seed": self.seed}, sort_keys=True)
        path = self.folder / "kept" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.npz"
        if path.is_file():
            try:
                with path.open("rb") as file:
                    check_sums(file)
                    with np.load(file, allow_pickle=False) as kept:
                        if kept.files:
                            return {k: kept[k] for k in kept.files}
            except MemoryError:  # which says nothing of the file
                raise
            except Exception:  # damaged archives raise nearly anything: compute it again
                path.unlink()
        self.say(name)
        arrays = {k: np.asarray(v) for k, v in compute().items()}
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        make_folders(path.parent)
        write_atomically(path, content.getvalue())
        return arrays

    def train(self, name: str, data: Dataset | list[Dataset], net: flows.Net, rule: Any, **keys: Any) -> Trajectory:
        """`flows.train` on the job's device, checkpointed and resumed under `name`."""
        keys = {"device": self.device, "seed": self.seed, **keys}
        if self.folder is None:
            return flows.train(data, net, rule, **keys)
        asked = {name: _fields(value) if is_dataclass(value) else value for name, value in keys.items()}
        text = json.dumps([net.config(), repr(rule), plain(asked), _names(data)], sort_keys=True, default=str)
        out = self.folder / "kept" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.say(name)
        make_folders(out.parent)
        return flows.train(data, net, rule, keep=flows.Keep(out, resume=out.exists()), **keys)


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def _names(data: Dataset | list[Dataset]) -> list[str]:
    return [each.sha256() for each in (data if isinstance(data, list) else [data])]


@dataclass(frozen=True)
class Reproduction:
    """An entry of the registry. `quick` and `full` are seconds on 2 cores and on one GPU, as measured.

    `id` is its name on the command line, `paper` the short name of the paper, `shows` the figure or table in words, `function`
    does it for a Job. `claims` are ids of docs/claims.md. One that is `alone` takes so long at the papers' scale that "all"
    leaves it out there.

    >>> from widemargin import papers
    >>> one = papers.REPRODUCTIONS["cb-2d"]
    >>> one.paper, one.to_dict()["seconds"]["quick"] == one.quick
    ('CB', True)
    """

    id: str
    paper: str
    shows: str
    quick: float
    full: float
    function: Callable[[Job], Outcome]
    claims: tuple[str, ...] = ()  # ids of docs/claims.md
    alone: bool = False  # so long at the papers' scale that "all" leaves it out there

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the function."""
        return {
            "id": self.id,
            "paper": self.paper,
            "shows": self.shows,
            "seconds": {"quick": self.quick, "paper": self.full},
            "claims": list(self.claims),
        }


REPRODUCTIONS: dict[str, Reproduction] = {}


def reproduction(
    id: str,
    *,
    paper: str,
    shows: str,
    quick: float,
    full: float,
    claims: tuple[str, ...] = (),
    alone: bool = False,
) -> Any:
    """Register a function that turns a Job into an Outcome under an id of its own; the function stays as it is.

    `paper`, `shows`, `quick`, `full`, `claims` and `alone` are the fields of `Reproduction`.

    >>> from widemargin import papers
    >>> @papers.reproduction("my-1", paper="MY", shows="Figure 1: nothing", quick=1, full=1)
    ... def reproduce(job):
    ...     return papers.Outcome({}, {}, {"scale": job.scale}, [], "Nothing was done.")
    >>> papers.find(["my-1"])[0].function is reproduce
    True
    >>> del papers.REPRODUCTIONS["my-1"]
    """

    def register(function: Callable[[Job], Outcome]) -> Callable[[Job], Outcome]:
        if id in REPRODUCTIONS:
            raise ValueError(f"{id} is registered twice")
        REPRODUCTIONS[id] = Reproduction(id, paper, shows, quick, full, function, claims, alone)
        return function

    return register


def find(asked: Sequence[str], scale: str = "quick") -> list[Reproduction]:
    """The reproductions that are `asked` for by ids; "all" for all of them, a paper's short name for all of its.

    At `scale` "paper", what takes very long is found by its own id only.

    >>> from widemargin import papers
    >>> [one.id for one in papers.find(["cb-2d", "cb-3", "cb-2d"])]
    ['cb-2d', 'cb-3']
    >>> {one.paper for one in papers.find(["mt"])}
    {'MT'}
    """
    several = isinstance(asked, Iterable) and not isinstance(asked, str) and getattr(asked, "ndim", 1) == 1
    if not several or not all(isinstance(word, str) for word in asked):
        raise InputError(f"what is asked for must be a list of ids such as ['cb-2d'], not {show(asked)}")
    chosen: dict[str, Reproduction] = {}
    for word in asked:
        some = [
            known
            for known in REPRODUCTIONS.values()
            if word == known.id
            or (word in ("all", known.paper, known.paper.lower()) and not (known.alone and scale == "paper"))
        ]
        if not some:
            raise InputError(f"there is no reproduction {word!r}; there are {', '.join(REPRODUCTIONS)}, or all")
        chosen |= {known.id: known for known in some}
    return list(chosen.values())


def run(
    one: Reproduction,
    out: str | Path,
    *,
    scale: str = "quick",
    device: str = "cpu",
    seed: int = 0,
    say: Callable[[str], None] | None = None,
) -> list[Verdict]:
    """Reproduce one figure or table into out/ID and return its verdicts.

    `scale` is "quick" or "paper", the papers' own sizes; `say` is called with what is done next. `device` and `seed` as in
    Job. Where a setting was chosen after a look, it is run on another seed too.

    >>> from pathlib import Path
    >>> from widemargin import papers
    >>> def reproduce(job):
    ...     total = sum(range(job.pick(10, 1000)))
    ...     return papers.Outcome({}, {}, {}, [papers.Verdict("the sum is 45", total, "45", total == 45)], "A sum.")
    >>> total = papers.Reproduction("sum", "MY", "A sum", 1, 1, reproduce)
    >>> papers.run(total, "out")[0].holds
    True
    >>> sorted(path.name for path in Path("out/sum").iterdir())
    ['README.md', 'data.npz', 'settings.json', 'verdict.json']
    """
    if not isinstance(one, Reproduction):
        raise InputError(f"a reproduction is one that papers.find returns, not {show(one)}")
    if not isinstance(scale, str) or scale not in SCALES:
        raise InputError(f"scale must be quick or paper, not {show(scale)}")
    folder = as_folder(out, "out") / one.id
    try:
        make_folders(folder)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; choose another") from None
    job = Job(scale, seed, folder, say or silent, device=device)
    started = time.perf_counter()
    with _ended_by_ctrl_c():
        outcome = one.function(job)
        if any(verdict.chosen_after for verdict in outcome.verdicts):
            outcome = replace(outcome, verdicts=_again(one, job, outcome.verdicts))
    _write(folder, one, job, outcome, time.perf_counter() - started)
    return list(outcome.verdicts)


class _Ended(BaseException):
    """Ctrl-C, which searches and trainings take for the end of their own part where it is a KeyboardInterrupt."""


@contextlib.contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Ctrl-C ends all that runs in here: else claims would be judged by what a search had found until then, and that be kept."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def end(number: int, frame: Any) -> None:
        try:
            before(number, frame)
        except KeyboardInterrupt:
            raise _Ended from None

    end.ends_all = True  # type: ignore[attr-defined]  # trainings leave it there
    signal.signal(signal.SIGINT, end)
    try:
        yield
    except _Ended:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)


def _again(reproduction: Reproduction, job: Job, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with what another seed says to those whose settings were chosen after a look."""
    assert job.folder is not None
    other = replace(job, seed=job.seed + OTHER, folder=job.folder / "again")
    before = {verdict.claim: verdict.to_dict() for verdict in reproduction.function(other).verdicts}

    def beside(verdict: Verdict) -> Verdict:
        there = before.get(verdict.claim) if verdict.chosen_after else None
        if there is None:
            return verdict
        return replace(
            verdict, again={"seed": other.seed} | {key: there[key] for key in ("measured", "uncertainty", "holds")}
        )

    return [beside(verdict) for verdict in verdicts]


def _write(folder: Path, reproduction: Reproduction, job: Job, outcome: Outcome, seconds: float) -> None:
    from widemargin import __version__, extras

    matplotlib = extras.load_matplotlib()

    for name, figure in outcome.figures.items():
        figure.draw_without_rendering()  # laid out here, once for both files
        figure.set_layout_engine("none")
        for ending in ("png", "pdf"):
            picture = io.BytesIO()
            with matplotlib.rc_context(PICTURES):
                figure.savefig(picture, format=ending)
            write_atomically(folder / f"{name}.{ending}", picture.getvalue())
    content = io.BytesIO()
    np.savez_compressed(content, **{k: np.asarray(v) for k, v in outcome.data.items()})  # type: ignore[arg-type]
    write_atomically(folder / "data.npz", content.getvalue())
    settings = {
        "format": FORMAT,
        "id": reproduction.id,
        "version": __version__,
        "scale": job.scale,
        "device": job.device,
        "seed": job.seed,
        "seconds": round(seconds, 1),
        "machine": platform.machine(),
        "settings": plain(outcome.settings),
    }
    write_atomically(folder / "settings.json", json.dumps(settings, indent=1, allow_nan=False).encode())
    verdicts = [verdict.to_dict() for verdict in outcome.verdicts]
    write_atomically(folder / "verdict.json", json.dumps(verdicts, indent=1, allow_nan=False).encode())
    words = (
        f"# {reproduction.shows}\n\n{reproduction.paper}, {job.scale} scale, seed {job.seed}. {outcome.words}\n\n"
        + table(verdicts)
    )
    write_atomically(folder / "README.md", words.encode())
