"""One self-contained page that shows what came out: certificates, runs, sweeps, monitors, reproductions.

`progress` is a function that is called with a line of text for each thing on the page.
"""

import widemargin.needs_torch  # noqa: F401  first: it says what to install where torch is missing

from .page import Page, build, write

__all__ = ["Page", "build", "write"]
