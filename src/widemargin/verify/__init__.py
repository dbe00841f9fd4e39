"""The checker: re-proves a certificate from its saved form and the data (docs/certificates.md), in exact arithmetic.

It shares no code with the solvers and imports only the standard library and numpy. Every double is read as the
rational it is. `frame` reads the certificate and gives the verdict, `exact` has the arithmetic, `reading` the numbers
and the data; each other module has the rules of one family of proofs. `python -m widemargin.verify CERT DATA` checks
a file where only numpy is installed.
"""

import os
import signal
import sys

if (
    sys.argv[:1] == ["-m"]
    and __name__ in sys.orig_argv
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    # `python -m` imports this before __main__, and an exception in the middle of that would end in a traceback.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

from .exact import integers, matmul, positive_semidefinite, sqrt_up
from .files import load
from .frame import CHANCE, EXIT, FORMAT, KINDS, PROVED, REFUSED, UNPROVED, Verdict, check, data_hash, digest, restored
from .kernels import ntk_kernel, relu_kernel, srelu_kernel
from .reading import LARGEST, MULTICLASS, OPTIMA, REGRESSION

CONVENTION = {kind: conventions[0] for kind, (_, conventions) in KINDS.items()}

__all__ = [
    "CHANCE",
    "CONVENTION",
    "EXIT",
    "FORMAT",
    "KINDS",
    "LARGEST",
    "MULTICLASS",
    "OPTIMA",
    "PROVED",
    "REFUSED",
    "REGRESSION",
    "UNPROVED",
    "Verdict",
    "check",
    "data_hash",
    "digest",
    "integers",
    "load",
    "matmul",
    "ntk_kernel",
    "positive_semidefinite",
    "relu_kernel",
    "restored",
    "sqrt_up",
    "srelu_kernel",
]
