"""One self-contained page that shows what came out: certificates, runs, sweeps, monitors, reproductions."""

from .page import Page, build, write

__all__ = ["Page", "build", "write"]
