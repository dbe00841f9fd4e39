"""Puts this folder on the path, so that tests in any subfolder can import `checks`, and skips `gpu` tests without a GPU."""

import contextlib
import signal
from collections.abc import Iterator

import pytest
import torch

# A job in the background (`make test &`) is started with Ctrl-C ignored, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """torch on one thread: for small tensors more are slower, by far where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
