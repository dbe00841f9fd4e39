"""The smallest useful run: the largest ReLU margin of four points, and a proof that no network does better.

    python examples/first_certificate.py

Expected: a margin of sqrt(2)/4 = 0.3535534 in convention M1, and "verified exactly".
"""

import math

import widemargin as wm

# XOR: opposite corners of a square share a label. No line separates them; four ReLU neurons do.
data = wm.Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1], name="xor")

cert = wm.margins.f1(data)
print(cert)
print(f"sqrt(2)/4 = {math.sqrt(2) / 4:.7f} lies in the interval: {cert.lower <= math.sqrt(2) / 4 <= cert.upper}")

network = cert.primal
print(f"the network has {network}; its outputs are {network(data.X).round(4).tolist()}")

print(cert.verify(data))
