"""Structural mutations of real certificates: whatever the checker accepts must agree with what is known of the margin.

WIDEMARGIN_MUTANTS=100000 pytest tests/verify/test_fuzz.py runs as many as asked for (2,000 in `make test`).
"""

import collections
import copy
import os
import random

import pytest
from corpus import hand_made, paths, question, written_before, written_now

from checks import repeated, seal
from widemargin import verify

MUTANTS = int(os.environ.get("WIDEMARGIN_MUTANTS", "2000"))
SEED = int(os.environ.get("WIDEMARGIN_MUTANT_SEED", "0"))
BATCHES = 20
SLOW = ("f1-multiclass 3", "f1 quadratic more")  # their proofs take a quarter of a second to check: drawn less often
PROOFS = (  # every type: all are in the corpus, and mutants are given them
    "norm",
    "pairing",
    "products",
    "tree",
    "mixed",
    "enumeration",
    "eigen",
    "eigen-tree",
    "cones",
    "cover",
    "trace",
    "signs",
    "fantope",
    "fantope-pairs",
    "cone",
    "relation",
    "dual",
    "samples",
)
WORDS = [
    *verify.KINDS,
    *{convention for _, conventions in verify.KINDS.values() for convention in conventions},
    *(
        "relu",
        "srelu",
        "leaky",
        "leaky:0.25",
        "ntk",
        "given",
        "sup",
        "l2",
        "total",
        "outer",
        "inner",
        "a",
        "c",
        "sum",
    ),
    *PROOFS,
    *("certified", "not-separable", "no-interpolation", "found"),
    *("time-limit", "stalled", "rounding", "not-found", "omitted"),
    *("logistic", "squared", "hinge", "squared-hinge", "exp", "cross-entropy", "free", "decayed"),
]
NUMBERS = [0, 1, -1, 2, 0.5, -0.5, 1e-9, 1e300, -1e300, 5e-324, 2**32, 2**32 + 1, 2**62, 2**1100 - 1, -(2**1099)]


@pytest.fixture(scope="module")
def corpus():
    return [*written_before(), *hand_made(), *written_now()]


@pytest.fixture(scope="module")
def truth(corpus):
    """For each data set and question the sharpest proved interval."""
    known = {}
    for _, payload, X, y in corpus:
        verdict = verify.check(payload, X, y)
        if not verdict.ok:
            continue
        key = verify.data_hash(X, y), question(payload)
        low, high = known.get(key, (-float("inf"), float("inf")))
        known[key] = max(low, payload["lower"]), min(high, payload["upper"])
    return known


def get(payload, path):
    for key in path:
        payload = payload[key]
    return payload


def mutate(rng, payload, where, others):
    """One change at a random place."""
    path = rng.choice(where)
    try:
        at, key = get(payload, path[:-1]), path[-1]
        value = at[key]
    except (KeyError, IndexError, TypeError):
        return  # an earlier change took the place away
    kind = rng.random()
    if kind < 0.45 and isinstance(value, int | float) and not isinstance(value, bool):
        size = rng.choice([1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0])
        if isinstance(value, int):  # may be too large for a float
            moved = value + rng.choice([1, -1]) * max(1, abs(value) * round(size * 2**50) >> 50)
        else:
            moved = value * (1 + rng.choice([1, -1]) * size)
        at[key] = rng.choice([moved, moved, -value, rng.choice(NUMBERS), value + 1])
    elif isinstance(value, bool):
        at[key] = not value
    elif isinstance(value, str):
        at[key] = rng.choice(WORDS)
    elif isinstance(value, list) and value and kind < 0.9:
        i, j = rng.randrange(len(value)), rng.randrange(len(value))
        action = rng.randrange(5)
        if action == 0:
            del value[i]
        elif action == 1:
            value.insert(i, copy.deepcopy(value[j]))
        elif action == 2:
            value[i], value[j] = value[j], value[i]
        elif action == 3:
            value[i] = copy.deepcopy(value[j])
        else:
            at[key] = value[:i]
    elif isinstance(at, dict) and kind < 0.95:
        del at[key]
    else:  # the same place of another certificate
        try:
            at[key] = copy.deepcopy(get(rng.choice(others)[1], path))
        except (KeyError, IndexError, TypeError):
            at[key] = rng.choice(NUMBERS)


def claim(rng, payload, size):
    """One bound that says more, the other out of its way, and often the numbers of the proof that go with it."""
    up = rng.random() < 0.5
    factor, key = (1 + size, "lower") if up else (1 / (1 + size), "upper")
    if type(payload.get(key)) is not float:
        return
    payload[key] *= factor
    if rng.random() < 0.8:
        payload["lower" if not up else "upper"] = 1e300 if up else 0.0
        payload["status"] = "rounding"  # says nothing
    if rng.random() < 0.6:
        extra, proof = payload.get("extra"), payload.get("proof")
        inner = [("gamma_nc",), ("gamma_a", key), ("gamma_c", key), ("smallest",)]
        inner += [("t",), ("maximum",), ("sides", 0, "lam"), ("sides", 1, "lam")]
        inner += [("vertices", k, "maximum") for k in range(9)]
        for path in inner:
            for root in (extra, proof):
                try:
                    at = get(root, path[:-1])
                    if type(at[path[-1]]) is float:
                        at[path[-1]] *= 1 / factor if path == ("maximum",) and up else factor
                except (KeyError, IndexError, TypeError):
                    pass


def mutant(rng, corpus, places):
    k = rng.randrange(len(corpus))
    if corpus[k][0] in SLOW and rng.random() < 0.95:
        k = rng.randrange(len(corpus))
    name, payload, X, y = corpus[k]
    payload = copy.deepcopy(payload)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        mutate(rng, payload, places[k], corpus)
    if rng.random() < 0.7:  # a bound that says more than the certificate did
        claim(rng, payload, rng.choice([1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 3.0, 1e9]))
    if rng.random() < 0.2:
        payload["proved"] = rng.random() < 0.5
    return name, payload, X, y


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_accepted_mutant_contradicts_what_is_known(batch, corpus, truth):
    rng = random.Random(f"{SEED} {batch}")
    places = [[path for path in paths(payload) if path and path != ("digest",)] for _, payload, _, _ in corpus]
    count = collections.Counter()
    for _ in range(MUTANTS // BATCHES):
        name, payload, X, y = mutant(rng, corpus, places)
        payload = seal(payload)
        verdict = verify.check(payload, X, y)
        str(verdict), verdict.to_dict()
        count[verdict.answer] += 1
        if verdict.answer == verify.REFUSED:
            continue
        known = truth.get((verify.data_hash(X, y), question(payload)))
        if known is None or (payload["extra"].get("kernel") == "given" and payload["convention"] != "gram"):
            count["another question"] += 1
            continue
        low, high = known
        infinite = payload["status"] == "no-interpolation" and payload["proved"]
        assert infinite or payload["lower"] <= high * (1 + 1e-12), (name, payload["lower"], known, str(verdict))
        if verdict.answer == verify.PROVED:
            assert payload["upper"] >= low * (1 - 1e-12), (name, payload["upper"], known, str(verdict))
    assert count[verify.PROVED] > 0.02 * MUTANTS / BATCHES, count  # some are accepted, so that the comparison is made
    assert count["another question"] < 0.1 * MUTANTS / BATCHES, count
    print(dict(count))


def test_the_corpus_is_accepted_and_holds_every_kind_and_proof(corpus, truth):
    kinds, proofs = set(), set()
    for name, payload, X, y in corpus:
        verdict = verify.check(payload, X, y)
        old_sample = payload["kind"] == "ntk" and not payload["proved"] and "key" not in payload["extra"]
        if old_sample:
            assert verdict.failed.startswith("format: extra.key"), name
            continue
        assert verdict.failed is None, (name, verdict)
        given = payload["extra"].get("kernel") == "given" and payload["convention"] in ("M7", "norm")
        sampled = payload["kind"] == "ntk" and not payload["proved"]
        assert verdict.answer == (verify.UNPROVED if given else verify.CHANCE if sampled else verify.PROVED), name
        kinds.add(payload["kind"])
        proofs.add((payload["kind"], payload["activation"], payload["proof"]["type"]))
    assert kinds == set(verify.KINDS)
    types = {kind for _, _, kind in proofs}
    assert types >= set(PROOFS)
    assert {("f1", "relu", "cones"), ("l1-regression", "relu", "cones"), ("f1-optimum", "relu", "cones")} <= proofs
    assert {("f1-multitarget-optimum", "relu", one) for one in ("enumeration", "cones", "cover")} <= proofs
    leaky = {(kind, proof) for kind, activation, proof in proofs if activation == "leaky:0.25"}
    assert leaky >= {("f1", one) for one in ("norm", "tree", "cones", "enumeration")}
    assert (
        leaky >= {("frozen", "dual"), ("rf", "dual"), ("l2-regression", "dual")} and ("f2", "leaky", "dual") in proofs
    )
    leaves = [
        leaf
        for _, payload, _, _ in corpus
        if payload["proof"]["type"] == "tree"
        for side in payload["proof"]["sides"]
        for leaf in side["leaves"]
    ]
    assert any(isinstance(leaf, dict) for leaf in leaves) and any(isinstance(leaf, list) for leaf in leaves)


class Whole:
    """Randomness that always says `first`: `claim` with or without the numbers of the proof."""

    def __init__(self, *values):
        self.values = list(values)

    def random(self):
        return self.values.pop(0)


@repeated("size", [1e-3, 0.5, 1e3], 0, 2)
def test_a_false_bound_with_a_true_proof_is_refused(size, corpus, truth):
    """Every certificate, a bound beyond what is known, the other bound out of its way."""
    tried = 0
    for name, payload, X, y in corpus:
        known = truth.get((verify.data_hash(X, y), question(payload)))
        if known is None or (name in SLOW and size < 1e3):
            continue
        for up in (True, False):
            for inner in (0.0, 1.0):
                false = copy.deepcopy(payload) | {"lower": float(known[1]), "upper": float(known[0])}
                claim(Whole(0.0 if up else 1.0, 0.0, inner), false, size)
                if (known[1] if up else known[0]) in (0.0, verify.LARGEST):
                    continue
                tried += 1
                verdict = verify.check(seal(false), X, y)
                assert verdict.answer not in (verify.PROVED, verify.CHANCE), (name, up, inner, known, str(verdict))
    assert tried > 100
