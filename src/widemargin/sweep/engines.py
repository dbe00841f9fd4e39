"""Who computes the batches: processes of this machine, a Ray or Dask cluster. Scheduling is theirs; here is what they share.

An engine has `submit(function, *args)`, which returns a future; `lost(error)`, whether an error means that a worker died rather
than that the work failed; `renew()`, to go on after that; and `close()`, which ends what is still at work. `ahead` is how many
batches it should hold, `together` says that one worker's death takes all batches in flight with it, and `certain` that a batch
which is lost is the one that its worker was at.
"""

from __future__ import annotations

import concurrent.futures as cf
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any, Protocol

from widemargin.types import InputError

THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PATIENCE = 5.0  # seconds for a cluster's address to answer
NODES = 15.0  # seconds for a first node that can compute to join it


class Engine(Protocol):
    workers: int
    ahead: int
    together: bool
    certain: bool

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future: ...
    def lost(self, error: BaseException) -> bool: ...
    def renew(self) -> None: ...
    def close(self) -> None: ...


class Local:
    """Processes of this machine, by loky: a worker that is killed breaks the pool, which is then made anew."""

    together, certain = True, False

    def __init__(self, workers: int | None = None):
        self.workers = workers or _cores()
        self.ahead = 2 * self.workers
        self._pool: Any = None

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        from joblib.externals.loky import ProcessPoolExecutor

        try:
            with _ctrl_c_blocked():  # workers may start here, and import for a second before `_start` is called in them
                if self._pool is None:
                    own = {"env": THREADS, "initializer": _start, "initargs": (os.getpid(),)}
                    self._pool = ProcessPoolExecutor(self.workers, **own)
                return self._pool.submit(function, *args)
        except (OSError, UnboundLocalError) as error:  # the latter is loky's, on its way out of the former
            cause = error if isinstance(error, OSError) else error.__context__
            said = getattr(cause, "strerror", None) or type(error).__name__
            raise InputError(
                f"no worker can be started: {said}; allow more open files and processes (ulimit), or use fewer --workers"
            ) from None

    def lost(self, error: BaseException) -> bool:
        from concurrent.futures.process import BrokenProcessPool

        from joblib.externals.loky.process_executor import ShutdownExecutorError

        return isinstance(error, BrokenProcessPool | ShutdownExecutorError | cf.CancelledError)

    def renew(self) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=True, kill_workers=True)


def _start(parent: int) -> None:
    """In a worker: Ctrl-C is the driver's, and a worker whose driver has died ends too, in the middle of a run if need be."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    end_with(parent)


def end_with(parent: int) -> None:
    """Have this process end within half a second of its parent's end, whatever it is at."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()


def _cores() -> int:
    with contextlib.suppress(AttributeError):  # those this process may use; not every system says
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Inline:
    """This process itself: for one worker, and to look at errors."""

    workers, ahead, together, certain = 1, 1, False, True

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        future: cf.Future = cf.Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def lost(self, error: BaseException) -> bool:
        return False

    def renew(self) -> None:
        pass

    def close(self) -> None:
        pass


class Ray:
    """A Ray cluster: the one of `address` (or of RAY_ADDRESS), else one made on this machine for the time of the sweep."""

    together, certain = False, True

    def __init__(self, workers: int | None = None, address: str | None = None, gpus: float = 0.0):
        try:
            import ray
        except ImportError:
            raise InputError("the engine ray needs Ray; pip install 'widemargin[ray]'") from None
        self.ray: Any = ray
        self._own = not ray.is_initialized()
        if self._own:
            _connect(ray, address or os.environ.get("RAY_ADDRESS"), workers, gpus)
        what = "GPU" if gpus else "CPU"
        began, there = time.monotonic(), 0
        while not (there := int(ray.cluster_resources().get(what, 0) / (gpus or 1.0))):
            if time.monotonic() - began > NODES:
                break
            time.sleep(0.2)  # nodes may be on their way
        if there < 1:
            self.close()
            raise InputError(f"the Ray cluster has no {what}; start nodes that have one")
        self.workers = min(workers or there, there)
        self.ahead = 2 * self.workers if workers is None else self.workers  # no more at once than asked for
        self._gpus = gpus
        self._remote: dict[Any, Any] = {}

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        if function not in self._remote:
            options = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": 0}  # who tries again is the driver
            self._remote[function] = self.ray.remote(**options)(function)
        return self._remote[function].remote(*args).future()

    def lost(self, error: BaseException) -> bool:
        kinds = (
            "WorkerCrashedError",
            "NodeDiedError",
            "ObjectLostError",
            "OwnerDiedError",
            "LocalRayletDiedError",
            "OutOfMemoryError",
            "RaySystemError",
        )
        there = tuple(getattr(self.ray.exceptions, kind) for kind in kinds if hasattr(self.ray.exceptions, kind))
        return isinstance(error, (*there, cf.CancelledError))

    def renew(self) -> None:
        pass  # the cluster replaces its workers itself

    def close(self) -> None:
        if self._own and self.ray.is_initialized():
            self.ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None, gpus: float) -> None:
    sorry = f"no Ray cluster answers at {address}"
    what = "start one (ray start --head), set RAY_AUTH_TOKEN if it asks for a token, or leave the address out"
    if address is not None and ":" in address:
        _reach(address.removeprefix("ray://"), sorry, what)
    own: dict[str, Any] = {} if address else {"num_cpus": workers or _cores(), "include_dashboard": False}
    if gpus and not address:
        own.pop("num_cpus")
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **own)
    except (OSError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{sorry}: {said}; {what}" if address else f"Ray does not start here: {said}") from None


class Dask:
    """A Dask cluster: the one whose scheduler is at `address`, else one made on this machine for the time of the sweep."""

    together, certain = False, False  # batches that wait at a worker are lost with it

    def __init__(self, workers: int | None = None, address: str | None = None):
        try:
            import dask
            import distributed
        except ImportError:
            raise InputError("the engine dask needs Dask; pip install 'widemargin[dask]'") from None
        # What it logs in this process is what we say ourselves, in a sentence.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL + 1)
        self._killed = distributed.KilledWorker
        self._last = contextlib.ExitStack()
        if address is not None:
            sorry, what = (
                f"no Dask scheduler answers at {address}",
                "start one (dask scheduler), or leave the address out",
            )
            _reach(address.rpartition("://")[2], sorry, what)
            try:
                self._client = _within(
                    NODES, lambda: distributed.Client(address, timeout=PATIENCE, set_as_default=False)
                )
            except (OSError, ValueError) as error:  # what answers may be something else
                raise InputError(f"{sorry}: {str(error)[:200] or type(error).__name__}; {what}") from None
        else:
            # Who tries again is the driver; and functions of one's own may have processes of their own.
            own = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.daemon": False}
            self._last.enter_context(dask.config.set(own))
            with _ctrl_c_blocked():
                made = distributed.LocalCluster(
                    n_workers=workers or _cores(), threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
                )  # fmt: skip
            self._last.callback(made.close)
            self._client = distributed.Client(made, set_as_default=False)
        self._last.callback(self._client.close)
        there = self._nodes()
        if not there:
            self.close()
            raise InputError("the Dask cluster has no workers; start some (dask worker ADDRESS --nthreads 1)")
        if max(there) > 1:
            self.close()
            raise InputError(
                f"a worker of the Dask cluster has {max(there)} threads, and runs need a process of their own; start workers "
                "with --nthreads 1"
            )
        self.workers = min(workers or len(there), len(there))
        self.ahead = 2 * self.workers if workers is None else self.workers
        self._pool = self._client.get_executor(pure=False)

    def _nodes(self) -> list[int]:
        """Threads of the workers; they may be on their way."""
        began = time.monotonic()
        while not (threads := list(self._client.nthreads().values())) and time.monotonic() - began < NODES:
            time.sleep(0.2)
        return threads

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        if self._client.status != "running":
            raise InputError(
                "the Dask scheduler is gone; what is stored is safe, run the same command again when it is back"
            )
        return self._pool.submit(function, *args)

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, self._killed | cf.CancelledError)

    def renew(self) -> None:
        pass  # the cluster replaces its workers itself

    def close(self) -> None:
        self._last.close()


@contextlib.contextmanager
def _ctrl_c_blocked() -> Iterator[None]:
    """Processes and threads that start here never see Ctrl-C, nor that the terminal was closed, which are the driver's."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    resource_tracker.ensure_running()  # with the first process Python starts this one, and lets Ctrl-C in again
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _within(seconds: float, make: Callable[[], Any]) -> Any:
    """What a function returns, or TimeoutError: for those whose own limits do not hold."""
    future: cf.Future = cf.Future()

    def run() -> None:
        try:
            future.set_result(make())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result(seconds)


def _reach(place: str, sorry: str, what: str) -> None:
    """InputError where nothing answers at host:port; clusters themselves would try for a minute."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{sorry}: {error}; {what}") from None


def make_engine(name: str, workers: int | None = None, address: str | None = None, gpus: float = 0.0) -> Engine:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers must be an integer of at least 1, not {workers!r}")
    if address is not None and name not in ("ray", "dask"):
        raise InputError(f"an address is that of a cluster, and the engine is {name}; choose ray or dask")
    if name == "local":
        return Local(workers)
    if name == "inline":
        return Inline()
    if name == "ray":
        return Ray(workers, address, gpus)
    if name == "dask":
        return Dask(workers, address)
    raise InputError(f"unknown engine {name!r}; choose local, ray or dask")
