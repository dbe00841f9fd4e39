"""Save a certificate, read it back as someone who does not trust the solver, check it, and see a forged one fail.

    python examples/verify_certificate.py

`widemargin.verify` shares no code with the solvers. It reads every number as the exact rational it is.
"""

import gzip
import json

import widemargin as wm

data = wm.data.parity(d=4, marginal="full")  # all 16 corners of the cube, the label is the parity of two bits
wm.margins.f1(data).save("parity.json.gz")

with gzip.open("parity.json.gz") as file:
    claim = json.load(file)
print(f"claimed: {claim['lower']:.6f} <= margin <= {claim['upper']:.6f}")

verdict = wm.verify.check(claim, data.X, data.y)
for item, detail in verdict.checks:
    print(f"  {item:15} {detail}")
print(verdict)

# A smaller upper bound than the proof shows. The digest is made to fit, so only the mathematics can object.
forged = claim | {"upper": 0.999 * claim["upper"], "lower": 0.99 * claim["lower"]}
forged["digest"] = wm.verify.digest(forged)
verdict = wm.verify.check(forged, data.X, data.y)
print(verdict)
if verdict:
    raise SystemExit("a forged certificate was accepted; please report this")
