"""The rule of least objectives: exp and log by series, and certificates that say too much."""

import copy
import math
import random
from decimal import Decimal, getcontext
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from test_attacks import forged

from checks import seal
from widemargin import Dataset, optima, verify
from widemargin.verify import optimum
from widemargin.verify.logs import ONE, exp_above, log_ends, softplus_above
from widemargin.verify.reading import Refused

getcontext().prec = 90
UNIT = Decimal(ONE)
X = np.array([[1.0, 0.5], [-1.0, 2.0], [0.25, -2.0], [3.0, 1.0], [-0.5, 1.5], [-2.0, 0.125], [0.5, 0.5]])
DATA = Dataset(X, [1, -1, 1, -1, 1, 1, -1])
WEIGHTS = [1.0, 0.5, 2.0, 1.0, 0.0, 1.5, 1.0]


def test_logarithms_are_enclosed():
    draw = random.Random(1)
    for _ in range(500):
        a, b = (draw.randrange(1, 1 << draw.randrange(1, 400)) for _ in range(2))
        low, high = log_ends(a, b)
        assert low <= (Decimal(a) / Decimal(b)).ln() * UNIT <= high
        assert high - low <= 2**21
    for a, b in ((1, 1), (2, 3), (4, 3), (3, 2), (3, 4), (2**200 + 1, 2**200), (1, 2**1000)):
        low, high = log_ends(a, b)
        assert low <= (Decimal(a) / Decimal(b)).ln() * UNIT <= high


def test_exponentials_are_bounded_from_above():
    draw = random.Random(2)
    for x in [*(draw.randrange(-130 * ONE, 300 * ONE) for _ in range(500)), 0, 1, -1, -112 * ONE, 1000 * ONE]:
        exact = (Decimal(x) / UNIT).exp()
        assert exact * UNIT <= exp_above(x) <= exact * (UNIT + 2**30) + 200
        if abs(x) < 130 * ONE:
            plus = (1 + exact).ln() * UNIT
            assert plus <= softplus_above(x) <= plus + 2**12
    with pytest.raises(Refused):
        exp_above(1001 * ONE)


def asked(loss, mode, weights=None):
    keys = {"loss": loss, "weight_decay": 0.07, "output_bias": mode, "weights": weights}
    return optima.f1(DATA, tol=1e-4, **({"bias": True} | keys))


def changed(payload, **fields):
    body = copy.deepcopy(payload)
    for path, value in fields.items():
        at = body
        *way, last = path.split("__")
        for key in way:
            at = at[key]
        at[last] = value
    return seal(body)


@pytest.mark.parametrize("loss", ["logistic", "squared", "hinge", "squared-hinge", "exp"])
@pytest.mark.parametrize("mode", [None, "free", "decayed"])
def test_a_bound_beyond_the_other_is_refused(loss, mode):
    """A little beyond what the other side shows, and every number that could make it true."""
    payload = asked(loss, mode, WEIGHTS).payload()
    assert verify.check(payload, X, DATA.y).ok
    more, less = payload["upper"] * (1 + 1e-9), payload["lower"] * (1 - 1e-9)
    assert verify.check(changed(payload, lower=more, upper=1e3), X, DATA.y).failed.startswith("lower bound")
    assert verify.check(changed(payload, upper=less, lower=0.0), X, DATA.y).failed.startswith("upper bound")
    for factor in (0.99, 1.01):
        for name in ("maximum", "scale", "weight_decay"):
            where = "proof" if name == "maximum" else "extra"
            value = payload[where][name] * factor
            body = changed(payload, lower=more, upper=1e3, **{f"{where}__{name}": value})
            verdict = verify.check(body, X, DATA.y)
            if name != "weight_decay":  # that is another problem
                assert not verdict.ok, (name, factor)
    dual = (np.asarray(payload["dual"]) * 1.01).tolist()
    assert not verify.check(changed(payload, lower=more, upper=1e3, dual=dual), X, DATA.y).ok


def test_what_the_dual_must_satisfy():
    payload = asked("logistic", "free", WEIGHTS).payload()
    low = {"lower": 0.01, "status": "rounding"}

    def failed(**fields):
        return verify.check(changed(payload, **low, **fields), X, DATA.y).failed

    assert failed() is None
    dual = payload["dual"]
    assert failed(dual=[-v for v in dual]).startswith("dual: entry 0 does not have the sign")
    assert failed(dual=[*dual[:-1], 0.5 * dual[-1]]).startswith("dual: the entries do not sum to zero")
    assert failed(dual=[v if i != 4 else 1e-3 for i, v in enumerate(dual)]).startswith("dual: entry 4 is not zero")
    assert failed(extra__scale=1e6).startswith("dual: entry 0 is larger than the weight")
    assert failed(extra__scale=0.0).startswith("format: extra.scale is not positive")
    assert failed(extra__scale=-1.0).startswith("format: extra.scale is not positive")
    assert failed(extra__weight_decay=0.0).startswith("format: extra.weight_decay")
    assert failed(extra__loss="cubic").startswith("format: extra.loss")
    assert failed(extra__output_bias="both").startswith("format: extra.output_bias")
    assert failed(extra__weights=[1.0] * 6).startswith("format: extra.weights")
    assert failed(extra__weights=[-1.0, *WEIGHTS[1:]]).startswith("format: extra.weights: a weight is negative")
    assert failed(extra__weights=[0] * 7).startswith("format: extra.weights: all weights are zero")
    assert failed(proof={"type": "omitted"}).startswith("lower bound: the proof is not stored")
    assert failed(proof__maximum=0.0).startswith("lower bound: proof.maximum is not positive")
    assert failed(primal=None).startswith("upper bound: no primal")
    assert failed(activation="srelu").startswith("format: no rule to check this activation")
    assert failed(extra__output_bias=None).startswith("upper bound: extra.offset is not 0")
    assert failed(convention="norm").startswith("format: kind f1-optimum is stated in convention objective")
    flat = verify.check(changed(payload, lower=0.0, status="certified"), X, DATA.y)
    assert flat.failed == "status: certified, but nothing is shown from below"
    assert verify.check(changed(payload, proved=False, **low), X, DATA.y).answer == verify.UNPROVED


def test_other_targets_need_the_squared_loss():
    values = Dataset(X, [0.5, 1.0, 2.0, -1.0, 0.0, 3.0, 1.0])
    cert = optima.f1(values, loss="squared", weight_decay=0.1, bias=True)
    assert cert.verify(values).ok
    body = changed(cert.payload(), extra__loss="hinge")
    assert verify.check(body, X, values.y).failed.startswith("labels: row 0")


def test_networks_have_relu_neurons():
    """One point x = y = 1: the least objective is 1/2 - 1/8. The values of leaky neurons were read in a wrong unit, so that a
    network with f(x) = 3/8 passed for one with 3/4.
    """
    point, y = np.array([[1.0]]), np.array([1.0])
    keys = {"loss": "squared", "weight_decay": 0.5, "bias": False, "output_bias": None}
    payload = optima.f1(Dataset(point, y), **({"bias": True} | keys)).payload()
    assert abs(payload["upper"] - 0.375) < 1e-9
    network = {"theta": [[1.0]], "mass": [0.375]}
    body = changed(payload, primal=network, lower=0.0, status="rounding", upper=0.22)
    for activation in ("leaky", "leaky:0.5", "leaky:0.001", "srelu"):
        verdict = verify.check(changed(body, activation=activation), point, y)
        assert verdict.failed == "format: no rule to check this activation"
    assert verify.check(body, point, y).failed.startswith("upper bound")


ODD = [
    0,
    1,
    -1,
    -0.0,
    0.5,
    1e-300,
    5e-324,
    1e300,
    True,
    None,
    "free",
    "decayed",
    "leaky",
    "squared",
    "hinge",
    "exp",
    [],
    {},
]
ODD += [2**60, 2**63, 2**1000, float("nan"), float("inf"), "norm", "enumeration", "tree", "cover", "dual", [0], [[1.0]]]
ASKED = ("loss", "weight_decay", "output_bias", "weights")  # another problem, whose bounds are others


def places(value, at=()):
    """Every number, word and list of a certificate, and where it stands."""
    if not isinstance(value, dict | list) or isinstance(value, list):
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in items:
        if not (at == ("extra",) and key in ASKED):
            yield from places(one, (*at, key))


def other(draw, value):
    if isinstance(value, list) and value:
        some = list(value)
        draw.choice([some.pop, lambda: some.append(some[0]), some.reverse, some.clear])()
        return some
    if isinstance(value, float) and draw.random() < 0.7:
        return draw.choice(
            [2 * value, -value, value * (1 + 2.0 ** -draw.randrange(1, 52)), value + 1, 0.0, 1e3 * value]
        )
    if type(value) is int and draw.random() < 0.7:
        return draw.choice([value + 1, value - 1, -value, 2 * value])
    return draw.choice(ODD)


def test_no_change_proves_a_bound_that_does_not_hold():
    """Bounds beyond the honest ones with one to three random changes each; the problem that is asked stays as it is."""
    draw, proved = random.Random(5), 0
    honest = [
        (asked(loss, mode, WEIGHTS), DATA)
        for loss, mode in (("logistic", "free"), ("squared", None), ("exp", "decayed"))
    ]
    honest.append((optima.f2(DATA, loss="hinge", weight_decay=0.07, bias=True), DATA))
    three = Dataset(X, [0, 1, 2, 1, 0, 2, 1])
    honest.append((optima.f1(three, loss="cross-entropy", weight_decay=0.2, bias=False), three))
    for _ in range(600):
        cert, data = draw.choice(honest)
        body = copy.deepcopy(cert.payload())
        kept = ["lower", "upper", "kind", "bias", "digest", "format", "data"]
        kept += ["activation"] if cert.kind == "f2-optimum" else []  # with its kernel another problem
        spots = [at for at in places(body) if at and at[0] not in kept]
        body |= draw.choice(
            [
                {"lower": cert.upper * (1 + 1e-6), "upper": 1e3},
                {"lower": 0.0, "upper": cert.lower * (1 - 1e-6), "status": "rounding"},
                {},
            ]
        )
        for _ in range(draw.randrange(1, 4)):
            *way, last = draw.choice(spots)
            at = body
            try:
                for key in way:
                    at = at[key]
                at[last] = other(draw, at[last])
            except (LookupError, TypeError):  # an earlier change took the place away
                continue
        verdict = verify.check(seal(body), data.X, data.y)
        if verdict.ok:
            assert body["lower"] <= cert.upper and body["upper"] >= cert.lower, (cert.kind, str(verdict))
            proved += 1
    assert proved > 4  # changes of what is for the reader, or that do not matter


def test_large_outputs_of_the_exponential_loss_are_refused_and_not_computed():
    payload = asked("exp", None).payload()
    mass = [1e6 * v for v in payload["primal"]["mass"]]
    verdict = verify.check(changed(payload, primal__mass=mass, upper=1e300), X, DATA.y)
    assert verdict.failed == "upper bound: the loss at a point is beyond every double"


def test_the_dual_bound_by_hand():
    """The formula of docs/certificates.md in floating point, at a dual that was made up."""
    dual, most, decay = np.array([0.5, -0.25, 0.125, -0.5, 0.25, 0.0, -0.125]), 10.0, 0.2
    theta = min(1, decay * 7 / most)
    z = theta * np.abs(dual)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = {
            "logistic": np.nan_to_num(-z * np.log(z)) - (1 - z) * np.log1p(-z),
            "exp": z - np.nan_to_num(z * np.log(z)),
            "hinge": z,
            "squared-hinge": z - z * z / 2,
            "squared": theta * dual * DATA.y - z * z / 2,
        }
    for loss, values in each.items():
        payload = asked(loss, None).payload()
        extra = {"loss": loss, "weight_decay": decay, "output_bias": None, "offset": 0.0}
        base = payload | {"dual": dual.tolist(), "extra": extra, "proof": {"type": "norm", "maximum": most}}
        base |= {"primal": {"theta": [], "mass": []}, "status": "rounding", "upper": 2.0}
        low = float(values.mean())
        assert verify.check(seal(base | {"lower": low * (1 - 1e-12)}), X, DATA.y).ok, loss
        assert (
            verify.check(seal(base | {"lower": low * (1 + 1e-12)}), X, DATA.y).failed
            == "lower bound: the weights prove less"
        )
        if loss in ("logistic", "exp"):  # of the zero network, exactly
            zero = math.log(2) if loss == "logistic" else 1.0
            good = base | {"lower": 0.0, "upper": zero * (1 + 1e-15)}
            assert verify.check(seal(good), X, DATA.y).ok
            assert not verify.check(seal(good | {"upper": zero * (1 - 1e-15)}), X, DATA.y).ok
        decayed = base | {"extra": extra | {"output_bias": "decayed"}}
        less = low - (theta * dual.sum() / 7) ** 2 / (2 * decay)
        assert verify.check(seal(decayed | {"lower": less * (1 - 1e-12)}), X, DATA.y).ok == (less > 0)
        assert not verify.check(seal(decayed | {"lower": less * (1 + 1e-12)}), X, DATA.y).ok


def test_the_share_of_the_dual_is_rounded_down():
    for scale, most in (
        (Fraction(1, 3), Fraction(2)),
        (Fraction(7), Fraction(10, 3)),
        (Fraction(1), Fraction(1, 10**40)),
    ):
        theta, least = optimum._feasible(scale, most), min(scale, most)
        assert least * (1 - Fraction(1, 2**90)) < theta < least and theta.denominator.bit_count() == 1


@pytest.mark.parametrize("loss", ["squared", "squared-hinge"])
def test_what_a_curved_loss_takes_from_the_dual_is_rounded_up(loss):
    """u y - u^2 / (2 w) with w = 3: the last part is no multiple of any power of two."""
    one = SimpleNamespace(y=[1], ky=0)
    found = optimum._dual_below(one, loss, [1], 0, [3], 0, Fraction(1))
    assert Fraction(5, 6) - Fraction(1, ONE) < found < Fraction(5, 6)


@pytest.mark.parametrize("label", [1, -1])
@pytest.mark.parametrize("value", [1, -1])
def test_margins_are_rounded_down_before_the_exponential(label, value, monkeypatch):
    seen = []
    monkeypatch.setattr(optimum, "exp_above", lambda x: seen.append(x) or 1)
    one, k = SimpleNamespace(y=[label], ky=0), 300
    optimum._loss_above(one, "exp", [value], k, Fraction(0), [1])
    assert 0 <= Fraction(seen[0], ONE) + label * Fraction(value, 1 << k) < Fraction(1, ONE)


@pytest.mark.parametrize("loss", ["hinge", "squared"])
@pytest.mark.parametrize("low,high", [(5, 8), (-8, -5), (-5, 8), (-8, 5)])
def test_values_in_the_space_of_a_kernel_are_taken_where_the_loss_is_larger(loss, low, high):
    """A value is between low / 3 or low / 7 and high / 3 or high / 7, whichever is further out."""
    K = SimpleNamespace(product=lambda a: ([low], [high]), least=Fraction(3), most=Fraction(7))
    ends = Fraction(low, 7 if low > 0 else 3), Fraction(high, 3 if high > 0 else 7)
    unit = Fraction(1, 1 << optimum.VALUE_BITS)
    for label, far in ((1, -1), (-1, 1)):
        y = label if loss == "hinge" else 100 * label
        (found,) = optimum._worst(SimpleNamespace(y=[y], ky=0), loss, K, [1], 0, Fraction(0))
        assert 0 <= far * (found * unit - ends[0 if far < 0 else 1]) < unit
        near = SimpleNamespace(y=[-y], ky=0)  # a target on the other side
        assert optimum._worst(near, loss, K, [1], 0, Fraction(0)) != [found]


def test_differences_of_outputs_are_rounded_up_before_the_exponential(monkeypatch):
    seen = []
    monkeypatch.setattr(optimum, "exp_above", lambda x: seen.append(x) or ONE)
    optimum._cross_entropy_above([0, 1, -1, 1 << 300], 300)  # 0, a little more, a little less, 1
    assert [x + ONE for x in seen] == [0, 1, 0, ONE]


DRAWN = np.array([[0, 4, 2], [1, 0, 1], [2, 2, 0], [0, 3, 0], [0, 0, 5], [1, 0, 0], [0, 0, 0]]) / 16
CLASSES = np.array([0, 1, 2, 0, 1, 2, 0])


def refusal(lower, upper, mode, offset, dual=DRAWN):
    extra = {"loss": "cross-entropy", "weight_decay": 0.2, "output_bias": mode, "offset": list(offset)}
    extra |= {"theta": [], "outer": []}
    proof, dual = {"type": "norm", "maximum": 10.0}, np.asarray(dual).tolist()
    body = forged("f1-multiclass-optimum", X, CLASSES, lower, upper, dual=dual, extra=extra, proof=proof)
    return verify.check(body, X, CLASSES).failed


@pytest.mark.parametrize("mode", [None, "decayed"])
def test_the_bounds_of_several_classes_by_hand(mode):
    """Entropies less what a bias may gain, at a dual that was made up; and the objective of constant outputs."""
    theta = 0.2 * 7 / 10
    z = theta * DRAWN
    z[np.arange(7), CLASSES] = 1 - z.sum(1)
    low = float(-(z * np.log(np.where(z > 0, z, 1))).sum() / 7)
    b, high = np.zeros(3), math.log(3)
    if mode is not None:
        b = np.array([0.5, -0.25, 0.0])
        high = float(np.mean(np.log(np.exp(b).sum()) - b[CLASSES]) + 0.2 * b @ b / 2)
        sums = theta * (np.eye(3)[CLASSES] * DRAWN.sum(1, keepdims=True) - DRAWN).sum(0) / 7
        low -= float(sums @ sums / (2 * 0.2))
    less, more = 1 - 1e-12, 1 + 1e-12
    assert 0 < low < high and refusal(low * less, high * more, mode, b) is None
    assert refusal(low * more, high * more, mode, b) == "lower bound: the weights prove less"
    assert refusal(low * less, high * less, mode, b) == "upper bound: the objective of the network is larger"


def test_what_the_dual_of_several_classes_must_satisfy():
    def changed_row(i, row):
        dual = DRAWN.copy()
        dual[i] = row
        return dual

    assert refusal(0.0, 2.0, None, [0, 0, 0]) is None
    assert refusal(0.0, 2.0, None, [0, 0, 0.5]) == "upper bound: extra.offset is not 0, but there is no output bias"
    assert refusal(0.0, 2.0, "free", [0, 0, 0]).startswith("dual: the vectors do not sum to zero")
    for row, failed in (
        ([-1 / 16, 0, 2 / 16], "dual: row 1 has a negative entry"),
        ([0.75, 0, 0.5], "dual: row 1 is larger than the weight of its point"),
        ([0, 0.5, 0.25], "dual: row 1 has a weight on its own class"),
    ):
        assert refusal(0.0, 2.0, None, [0, 0, 0], changed_row(1, row)) == failed
