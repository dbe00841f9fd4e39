"""What does a margin guarantee? Bounds on the test error of max-margin predictors, beside the error itself.

    python examples/what_it_guarantees.py [--n 2000]

Points of the plane with the labels of XOR (MT Section 3.4). Every theorem that could apply is evaluated; the bounds below 1 are
shown, with the assumptions that no sample can show.
"""

import argparse

import numpy as np

import widemargin as wm

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--n", type=int, default=2000, help="points [2000]")
options = parser.parse_args()

data = wm.data.xor_with_noise(d=2, n=options.n, seed=1)
found = wm.theory.guarantees(data, delta=0.05)
print(f"{data}: {len(found)} guarantees evaluated")
for one in sorted(found, key=lambda one: float(one.value)):
    if one.quantity == "test error" and one.explicit and not one.vacuous:
        print(f"  {one.id:6} test error of the {one.about} at most {one.value:.3f}")

best = found.best
assert best is not None
print(f"best: {best.value:.3f} ({best.reference}), if {'; '.join(a.text for a in best.assumptions if a.holds is None)}")

fresh = wm.data.xor_with_noise(d=2, n=10_000, seed=2)
network = found.facts.margin("f1").primal
print(f"measured on {fresh.n} new points: {np.mean(fresh.y * network(fresh.X) <= 0):.4f} (F1 network)")
