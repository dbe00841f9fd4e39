"""Who computes the batches: processes of this machine, or a Ray cluster. Scheduling is theirs; here is what they have in common.

An engine has `submit(function, *args)`, which returns a future; `lost(error)`, whether an error means that a worker died rather
than that the work failed; `renew()`, to go on after that; and `close()`.
"""

from __future__ import annotations

import concurrent.futures as cf
import os
from collections.abc import Callable
from typing import Any, Protocol

from widemargin.types import InputError


class Engine(Protocol):
    workers: int
    name: str

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future: ...
    def lost(self, error: BaseException) -> bool: ...
    def renew(self) -> None: ...
    def close(self, wait: bool = True) -> None: ...


class Local:
    """Processes of this machine, by loky: a worker that is killed breaks the pool, which is then made anew."""

    name = "local"

    def __init__(self, workers: int | None = None):
        self.workers = workers or os.cpu_count() or 1
        self._pool: Any = None

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        from joblib.externals.loky import ProcessPoolExecutor

        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.workers, env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        return self._pool.submit(function, *args)

    def lost(self, error: BaseException) -> bool:
        from concurrent.futures.process import BrokenProcessPool

        from joblib.externals.loky.process_executor import ShutdownExecutorError

        return isinstance(error, BrokenProcessPool | ShutdownExecutorError | cf.CancelledError)

    def renew(self) -> None:
        self.close(wait=False)

    def close(self, wait: bool = True) -> None:
        if self._pool is not None:
            pool, self._pool = self._pool, None
            pool.shutdown(wait=wait, kill_workers=not wait)


class Inline:
    """This process itself: for one worker, and to look at errors."""

    name, workers = "inline", 1

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

    def close(self, wait: bool = True) -> None:
        pass


class Ray:
    """A Ray cluster: the one of `address` (or of RAY_ADDRESS), else one made on this machine for the time of the sweep."""

    name = "ray"

    def __init__(self, workers: int | None = None, address: str | None = None, gpus: float = 0.0):
        try:
            import ray
        except ImportError:
            raise InputError("the engine ray needs Ray; pip install 'widemargin[ray]'") from None
        self.ray, self._own = ray, not ray.is_initialized()
        if self._own:
            address = address or os.environ.get("RAY_ADDRESS")
            try:
                ray.init(
                    address=address,
                    log_to_driver=False,
                    configure_logging=False,
                    **({} if address else {"num_cpus": workers}),
                )
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                raise InputError(
                    f"no Ray cluster answers at {address}: {said}; start one (ray start --head) or leave the address out"
                ) from None
        self.workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._gpus = gpus
        self._remote: dict[Any, Any] = {}

    def submit(self, function: Callable[..., Any], *args: Any) -> cf.Future:
        if function not in self._remote:
            options = {
                "num_cpus": 1,
                "num_gpus": self._gpus,
                "max_retries": 0,
                "runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}},
            }
            self._remote[function] = self.ray.remote(**options)(function)
        return self._remote[function].remote(*args).future()

    def lost(self, error: BaseException) -> bool:
        kinds = (
            "WorkerCrashedError",
            "NodeDiedError",
            "ObjectLostError",
            "OwnerDiedError",
            "LocalRayletDiedError",
            "RaySystemError",
        )
        there = tuple(getattr(self.ray.exceptions, kind) for kind in kinds if hasattr(self.ray.exceptions, kind))
        return isinstance(error, (*there, cf.CancelledError))

    def renew(self) -> None:
        pass  # the cluster replaces its workers itself

    def close(self, wait: bool = True) -> None:
        if self._own and self.ray.is_initialized():
            self.ray.shutdown()


def make_engine(name: str, workers: int | None = None, address: str | None = None, gpus: float = 0.0) -> Engine:
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    if name == "local":
        return Local(workers)
    if name == "inline":
        return Inline()
    if name == "ray":
        return Ray(workers, address, gpus)
    raise InputError(f"unknown engine {name!r}; choose local or ray")
