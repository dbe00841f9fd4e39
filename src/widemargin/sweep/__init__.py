"""Many runs: what to run (`Sweep`), where results go (`Store`), and who computes them (`sweep`)."""

from .drive import Estimate, Progress, dry_run, sweep
from .plan import Run, Sweep
from .store import Store, load, query

__all__ = ["Estimate", "Progress", "Run", "Store", "Sweep", "dry_run", "load", "query", "sweep"]
