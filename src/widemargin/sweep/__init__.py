"""Many runs: what to run (`Sweep`), where results go (`Store`), and who computes them (`sweep`).

`progress` is a function that is called with a `Progress` several times a second, `seed` a whole number of at least 0.
"""

from .drive import Estimate, Progress, dry_run, sweep
from .plan import Run, Sweep
from .store import Store, load, query

__all__ = ["Estimate", "Progress", "Run", "Store", "Sweep", "dry_run", "load", "query", "sweep"]
