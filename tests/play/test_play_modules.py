"""The modules of the playground against Python: its checker and ours, its search and ours, its training and flows."""

import copy
import json
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from playing import random_points

from widemargin import Dataset, flows, margins, optima, verify
from widemargin.play.bundle import PAGE
from widemargin.verify.files import _once
from widemargin.verify.logs import exp_above, log_ends, softplus_above

pytestmark = pytest.mark.usefixtures("one_thread")
SOLVE = """
const {F1} = await use("certify.js"), {check} = await use("check.js");
return data.map(({X, y, bias}) => {
  const f1 = new F1(X, y, bias);
  while (f1.gap > 1e-6 && f1.rounds < 150 && f1.round());
  const text = f1.text();
  return {text, gap: f1.gap, ...check(text, X, y)};
});"""
CHECK = 'const {check} = await use("check.js"); return data.map(({text, X, y}) => check(text, X, y));'


def as_data(X, y, bias):
    return {"X": X.tolist(), "y": y.tolist(), "bias": bias}


def tampered(text: str, **changes) -> str:
    """A certificate with other numbers and a digest that fits them."""
    body = json.loads(text) | changes
    return json.dumps(body | {"digest": verify.digest(body)})


@pytest.mark.slow
def test_browser_and_python_check_each_other_on_fifty_sets(js):
    sets = [random_points(k) for k in range(50)]
    theirs = js(SOLVE, [as_data(*one) for one in sets])
    again = []
    for (X, y, bias), found in zip(sets, theirs):
        assert found["answer"] == "proved exactly", found["failed"]
        body = json.loads(found["text"])
        assert verify.check(body, X, y).ok, str(verify.check(body, X, y))
        ours = margins.f1(Dataset(X, y), bias=bias, time_limit=60)
        assert ours.lower <= body["upper"] and body["lower"] <= ours.upper  # the intervals meet
        assert body["upper"] == 0 or found["gap"] < 1e-4
        text = json.dumps(ours.payload())
        assert ours.proof["type"] in ("enumeration", "norm")
        again.append({"text": text, "X": X.tolist(), "y": y.tolist(), "good": True})
        if ours.lower > 0:
            lower = tampered(text, upper=ours.upper * (1 - 1e-9), lower=ours.lower / 2, status="rounding")
            if not verify.check(json.loads(lower), X, y).ok:
                again.append({"text": lower, "X": X.tolist(), "y": y.tolist(), "good": False})
        if body["lower"] > 0:
            for wrong in (
                tampered(found["text"], upper=body["upper"] * 0.999, lower=body["lower"] * 0.9),
                tampered(found["text"], lower=body["lower"] * 1.01, upper=body["upper"] * 1.02),
                found["text"].replace('"atoms":', '"atoms": 1'),
            ):
                assert not verify.check(json.loads(wrong), X, y).ok
                again.append({"text": wrong, "X": X.tolist(), "y": y.tolist(), "good": False})
    assert sum(one["good"] for one in again) > 30 and sum(not one["good"] for one in again) > 90
    for one, said in zip(again, js(CHECK, again)):
        assert (said["answer"] == "proved exactly") == one["good"], said


def test_xor_without_a_bias(js):
    X, y = np.array([[1.0, 1], [-1, -1], [1, -1], [-1, 1]]), np.array([1.0, 1, -1, -1])
    (found,) = js(SOLVE, [as_data(X, y, False)])
    body = json.loads(found["text"])
    assert 0.35355 <= body["lower"] <= math.sqrt(2) / 4 <= body["upper"] <= 0.35356
    assert found["answer"] == "proved exactly" and verify.check(body, X, y).ok


def symmetric_sets():
    turn = np.arange(12) * math.pi / 6
    ring = np.round(np.column_stack([np.cos(turn), np.sin(turn)]) * 64) / 64 + 0.0
    grid = np.array([[i, j] for i in range(6) for j in range(6)]) - 2.0
    line = np.column_stack([np.arange(10) / 4.0, np.zeros(10)])
    return {
        "ring": (ring, (-1.0) ** np.arange(12)),
        "chessboard": (grid, (-1.0) ** grid.sum(axis=1)),
        "halves": (grid, np.where(grid[:, 0] > 0, 1.0, -1.0)),
        "line": (line, (-1.0) ** np.arange(10)),
        "twice": (np.repeat(grid[:6], 2, axis=0), np.repeat([1.0, -1, 1, 1, -1, 1], 2)),
        "one label": (ring, np.ones(12)),
        "one point": (np.array([[0.5, 0.25]]), np.array([-1.0])),
    }


def test_degenerate_points_are_certified_all_the_same(js):
    """Symmetric points, points on a line and points twice make linear programs with many equal vertices."""
    sets = {name: (X, y, True) for name, (X, y) in symmetric_sets().items()}
    for (name, (X, y, bias)), found in zip(sets.items(), js(SOLVE, [as_data(*one) for one in sets.values()])):
        assert found["answer"] == "proved exactly" and found["gap"] < 1e-5, name
        body = json.loads(found["text"])
        ours = margins.f1(Dataset(X, y), bias=bias, time_limit=30)
        assert ours.lower <= body["upper"] and body["lower"] <= ours.upper and verify.check(body, X, y).ok, name


def test_contradictions_have_margin_zero_exactly(js):
    sets = {
        "on top of each other": ([[1.0, 2], [1, 2], [0, 0]], [1.0, -1, 1], True),
        "on one ray": ([[0.75, 1.5], [1.75, 3.5], [1, 0]], [1.0, -1, 1], False),
        "the origin": ([[0.0, 0], [1, 1]], [1.0, -1], False),
    }
    sets = {name: (np.array(X), np.array(y), bias) for name, (X, y, bias) in sets.items()}
    for (name, (X, y, _)), found in zip(sets.items(), js(SOLVE, [as_data(*one) for one in sets.values()])):
        body = json.loads(found["text"])
        assert (body["lower"], body["upper"], body["status"]) == (0, 0, "not-separable"), name
        assert found["answer"] == "proved exactly" and verify.check(body, X, y).ok, name


@pytest.mark.slow
def test_other_kinds_are_checked_by_both(js):
    """Frozen directions, random features, their kernel and the least objective with weight decay, made here and there."""
    made = """
    const {frozenMargin, featureMargin, kernelMargin} = await use("features.js"), {Optimum} = await use("optimum.js");
    const {TwoLayerNet} = await use("nets.js"), {lifted} = await use("certify.js"), {check} = await use("check.js");
    return data.map(({X, y, bias}) => {
      const {V} = new TwoLayerNet(lifted(X, bias), y, {width: 30, D: bias ? 3 : 2, seed: 1, only: true});
      const texts = [frozenMargin(X, y, bias, V), featureMargin(X, y, bias, V), kernelMargin(X, y, bias)];
      for (const loss of ["logistic", "exp"]) {
        const best = new Optimum(X, y, bias, loss, 0.01);
        while (best.gap > 1e-6 && best.rounds < 100 && best.round());
        texts.push(best.text());
      }
      return texts.map((text) => ({text, ...check(text, X, y)}));
    });"""
    sets = [random_points(k) for k in range(100, 112)]
    again = []
    for (X, y, bias), found in zip(sets, js(made, [as_data(*one) for one in sets])):
        data, kept = Dataset(X, y), {"X": X.tolist(), "y": y.tolist()}
        V = flows.TwoLayer(2 + bias, 30, law="sphere", mean_field=True, train="output").init(1, 1)["V"][0]
        ours = [
            margins.frozen(data, V, bias=bias),
            margins.random_features(data, V, bias=bias),
            margins.f2(data, bias=bias),
            *(
                optima.f1(data, loss=loss, weight_decay=0.01, bias=bias, output_bias=None)
                for loss in ("logistic", "exp")
            ),
        ]
        for one, cert in zip(found, ours):
            body = json.loads(one["text"])
            assert one["answer"] == "proved exactly", (body["kind"], one["failed"])
            assert verify.check(body, X, y).ok, str(verify.check(body, X, y))
            assert body["kind"] == cert.kind
            assert cert.lower <= body["upper"] * (1 + 1e-9) and body["lower"] <= cert.upper * (1 + 1e-9) + 1e-12
            if cert.proved and cert.proof["type"] in ("enumeration", "dual"):
                payload = cert.payload()
                again.append(kept | {"text": json.dumps(payload), "good": cert.verify(data).ok})
                if payload["lower"] > 1e-6:
                    lower = {"lower": payload["lower"] * 1.01, "upper": payload["upper"] * 1.02}
                    again.append(kept | {"text": tampered(again[-1]["text"], **lower), "good": False})
    good = [one["good"] for one in again]
    assert sum(good) > 30 and len(good) - sum(good) > 30
    for one, said in zip(again, js(CHECK, again)):
        assert (said["answer"] == "proved exactly") == one["good"], (said, one["text"][:200])


ALL_KINDS = """
const {F1, lifted} = await use("certify.js"), {frozenMargin, featureMargin, kernelMargin} = await use("features.js");
const {Optimum} = await use("optimum.js"), {TwoLayerNet} = await use("nets.js");
return data.map(({X, y, bias}) => {
  const {V} = new TwoLayerNet(lifted(X, bias), y, {width: 8, D: bias ? 3 : 2, seed: 1, only: true});
  const f1 = new F1(X, y, bias), best = new Optimum(X, y, bias, "logistic", 0.01);
  for (const one of [f1, best]) while (one.gap > 1e-6 && one.rounds < 100 && one.round());
  return [f1.text(), best.text(), frozenMargin(X, y, bias, V), featureMargin(X, y, bias, V), kernelMargin(X, y, bias)];
});"""


def read_as_verify_does(text, X, y):
    """The answer of `widemargin verify` to a file with this text."""
    try:
        return verify.check(json.loads(text, object_pairs_hook=_once), X, y).answer
    except ValueError:
        return "refused"


def changed(body, rng):
    """One field of a certificate is another, and its digest fits: a number a little off, a shorter list, anything hostile."""
    body, at = copy.deepcopy(body), []

    def visit(value, path):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            at.append((value, key))
            if isinstance(one, dict | list):
                visit(one, (*path, key))

    visit({key: body[key] for key in body if key != "digest"}, ())
    holder, key = rng.choice([(holder if holder is not at[0][0] else body, key) for holder, key in at])
    old = holder[key]
    hostile = [
        0,
        -0.0,
        1,
        -1.0,
        1e308,
        5e-324,
        math.nan,
        math.inf,
        10**400,
        "1",
        "",
        None,
        True,
        [],
        {},
        [old],
        "f1",
        "M1",
    ]
    if rng.random() < 0.3:
        holder[key] = rng.choice(hostile)
    elif isinstance(old, float) and old:
        holder[key] = rng.choice(
            [old * (1 + 2.0 ** -rng.randrange(1, 53)), old * (1 - 2.0 ** -rng.randrange(1, 53)), -old]
        )
    elif isinstance(old, list) and old:
        del old[rng.randrange(len(old))]
    else:
        holder[key] = rng.choice(hostile)
    body["digest"] = verify.digest(body)
    return json.dumps(body)


@pytest.mark.slow
def test_nothing_is_proved_in_the_browser_that_python_refuses(js):
    """Forged certificates of all kinds, by hand and at random. The browser may know fewer rules, never weaker ones."""
    sets, rng, cases = [random_points(k, 6) for k in range(300, 308)], random.Random(8), []
    for (X, y, _), texts in zip(sets, js(ALL_KINDS, [as_data(*one) for one in sets])):
        for text in texts:
            body = json.loads(text)
            cases.append((X, y, text))
            for more in (
                {"kind": [body["kind"]]}, {"extra": 0}, {"extra": []}, {"extra": body["extra"] | {"offset": None}},
                {"extra": body["extra"] | {"scale": None}}, {"proved": False, "status": "not-separable"}, {"proof": 7},
                {"proved": False, "status": "certified"}, {"upper": body["upper"] * (1 - 2.0**-40), "status": "rounding"},
                {"lower": body["lower"] * 1.001 + 1e-6}, {"data": 1}, {"n": float(len(y))}, {"primal": []},
            ):  # fmt: skip
                cases.append((X, y, tampered(text, **more)))
            cases.append((X, y, text.replace('"lower":', '"lower":0,"lower":')))
            cases.append((X, y, text.replace('"upper":', '"upper":' + "9" * 5000)))
            cases += [(X, y, changed(body, rng)) for _ in range(15)]
            cases.append((X, -y, tampered(text, data={"sha256": verify.data_hash(X, -y)})))
    said = js(CHECK, [{"text": text, "X": X.tolist(), "y": y.tolist()} for X, y, text in cases])
    answers = [(one["answer"], read_as_verify_does(text, X, y)) for (X, y, text), one in zip(cases, said)]
    for (here, there), (_, _, text) in zip(answers, cases):
        assert here in ("refused", there), text[:400]
    assert answers.count(("proved exactly", "proved exactly")) > 40 and answers.count(("refused", "refused")) > 500


@pytest.mark.slow
def test_both_checkers_end_at_the_same_double(js):
    """The least upper bound and the largest lower one that the browser accepts: Python accepts them, and no double beyond."""
    edges = """
    const {check} = await use("check.js"), {pythonJson} = await use("json.js"), {sha256} = await use("sha256.js");
    const view = new DataView(new ArrayBuffer(8)), bits = (x) => { view.setFloat64(0, x); return view.getBigInt64(0); };
    const double = (n) => { view.setBigInt64(0, n); return view.getFloat64(0); };
    const sealed = ({digest, ...rest}) => pythonJson({...rest, digest: sha256(new TextEncoder().encode(pythonJson(rest)))});
    return data.map(({text, X, y}) => {
      const body = JSON.parse(text), good = (one) => check(one, X, y).answer === "proved exactly";
      const edge = (name, from, to) => {  // from is accepted, to is not
        const at = (n) => sealed({...body, status: "rounding", [name]: double(n)});
        let a = bits(from), b = bits(to);
        if (!good(at(a)) || good(at(b))) return [];
        while (a - b > 1n || b - a > 1n) { const middle = (a + b) / 2n; if (good(at(middle))) a = middle; else b = middle; }
        return [[at(a), at(b)]];
      };
      return [...edge("upper", body.upper, body.lower), ...edge("lower", body.lower, body.upper)];
    });"""
    sets = [random_points(k, 6) for k in range(320, 328)]
    items = [
        {"text": text} | as_data(*one)
        for one, texts in zip(sets, js(ALL_KINDS, [as_data(*one) for one in sets]))
        for text in texts
        if json.loads(text)["status"] != "not-separable"
    ]
    found = js(edges, items)
    assert sum(map(len, found)) > 50
    for item, pairs in zip(items, found):
        for good, bad in pairs:
            assert read_as_verify_does(good, item["X"], item["y"]) == "proved exactly", good[:300]
            assert read_as_verify_does(bad, item["X"], item["y"]) == "refused", bad[:300]


def test_margins_of_neurons_where_points_nearly_contradict_each_other(js):
    """Two far points beside each other with different labels: all that is left of the bound is the rounding of large terms."""
    made = """
    const {frozenMargin, featureMargin} = await use("features.js"), {TwoLayerNet} = await use("nets.js");
    const {lifted} = await use("certify.js"), {check} = await use("check.js"), {X, y} = data;
    return [0, 1, 2, 3, 4, 5].flatMap((seed) => {
      const {V} = new TwoLayerNet(lifted(X, false), y, {width: 2, D: 2, seed, only: true});
      return [frozenMargin(X, y, false, V), featureMargin(X, y, false, V)].map((text) => check(text, X, y));
    });"""
    far = 6399 / 64
    X = [[100, -100], [100, far], [-100, far], [100, -100], [-100, 100]]
    assert [one["failed"] for one in js(made, {"X": X, "y": [-1, 1, 1, -1, -1]})] == [None] * 12


RATES = {"gd": 0.3, "ngd": 0.5, "adam": 0.02}
RULES = {
    "gd": flows.GD(lr=0.3 * 10),
    "ngd": flows.NormalizedGD(lr=0.5),
    "adam": flows.Adam(lr=0.02),
    "decayed gd": flows.GD(lr=0.3 * 10, weight_decay=0.01 / 10),
    "decayed adam": flows.Adam(lr=0.02, weight_decay=0.01 / 10),
}
NETS = {
    "both": lambda D: flows.TwoLayer(D, 10, law="cb", mean_field=True, law_scale=1.5),
    "output": lambda D: flows.TwoLayer(D, 10, law="sphere", mean_field=True, train="output"),
    "frozen": lambda D: flows.Frozen(D, 10, law="paired", r0=1.5),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", NETS)
def test_a_hundred_steps_are_those_of_flows(js, mode):
    rng = np.random.default_rng(3)
    X, y = np.round(rng.normal(size=(12, 2)) * 64) / 64 + 0.0, np.where(rng.random(12) < 0.5, -1.0, 1.0)
    cases, expected = [], []
    for bias in (True, False):
        for loss in ("logistic", "exp"):
            for name, rule in RULES.items():
                if (mode, name) == ("output", "ngd") or ("decayed" in name and mode == "output"):
                    continue  # its steps are at the edge of what converges, where rounding grows tenfold every few of them
                word = name.split()[-1]
                cases.append(
                    {
                        **{"points": np.column_stack([X, y]).tolist(), "bias": bias, "width": 10, "seed": 4},
                        **{"scale": 1.5, "mode": mode, "rule": word, "lr": RATES[word], "loss": loss},
                        "decay": 0.01 if "decayed" in name else 0,
                    }
                )
                record = flows.Record(["step", "margins", "log_risk", "weights"], points=100)
                run = flows.train(
                    Dataset(X, y), NETS[mode](2 + bias), rule, loss=loss, stop=100, bias=bias, seed=4, record=record
                )
                assert len(run["step"]) > 50
                expected.append(run)
    found = js(
        """const {Run} = await use("train.js");
        return data.map(({steps, ...settings}) => {
          const run = new Run(settings), out = [];
          for (const step of steps) {
            run.advance(step - run.steps);
            const {net, p} = run.main;
            out.push({p: [...p], W: (net.r ? [net.r] : [net.a, net.V]).map((part) => [...part]), ...run.numbers()});
          }
          return out;
        });""",
        [
            case | {"steps": [0, 100] if case["rule"] == "ngd" else run["step"][:, 0].astype(int).tolist()}
            for case, run in zip(
                cases, expected
            )  # normalised descent records the steps that it took, not those that it tried
        ],
    )
    for case, run, rows in zip(cases, expected, found):
        at = [0, -1] if case["rule"] == "ngd" else slice(None)
        margin = np.nan_to_num(run["margin_M7" if mode == "output" else "margin_M1"][at, 0])  # no margin at a = 0
        assert rows[-1]["step"] == 100
        np.testing.assert_allclose(
            [row["f2" if mode == "output" else "f1"] for row in rows], margin, rtol=0, atol=1e-12
        )
        np.testing.assert_allclose([row["risk"] for row in rows], np.exp(run["log_risk"][at, 0]), rtol=1e-11)
        names = ("W_r",) if mode == "frozen" else ("W_a", "W_V")
        for k, name in enumerate(names):
            ours = run[name][at, 0]
            theirs = np.array([row["W"][k] for row in rows])
            if name == "W_V":
                theirs = theirs.reshape(len(rows), -1, 3)[:, :, : 2 + case["bias"]]
            scale = np.abs(ours).max()
            np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12 * max(1.0, scale))


def test_gradient_flow_is_that_of_flows_up_to_its_steps(js):
    X, y, _ = random_points(8)
    settings = {
        **{"points": np.column_stack([X, y]).tolist(), "bias": True, "width": 20, "seed": 1, "scale": 1},
        **{"mode": "both", "rule": "flow", "lr": 1, "decay": 0, "loss": "logistic"},
    }
    found = js(
        'const {Run} = await use("train.js"); const run = new Run(data); run.advance(400); return run.numbers();',
        settings,
    )
    net = flows.TwoLayer(3, 20, law="cb", mean_field=True)
    run = flows.train(
        Dataset(X, y),
        net,
        flows.GradientFlow(),
        stop=flows.Stop(20_000, time=found["time"], clock="cb"),
        bias=True,
        seed=1,
    )
    assert abs(run["margin_M1"][-1, 0] / found["f1"] - 1) < 0.05
    assert abs(run["log_risk"][-1, 0] - math.log(found["risk"])) < 0.05 * abs(math.log(found["risk"])) + 0.05


def test_normal_numbers_are_those_of_numpy(js):
    drawn = js(
        'const {Normals} = await use("numpy.js"); return data.map(([s, t]) => Array.from(new Normals(s, t).array(4000)));',
        [[0, 0], [123456, 3], [2**40 + 5, 1]],
    )
    for seed, numbers in zip(([0, 0], [123456, 3], [2**40 + 5, 1]), drawn):
        expected = np.random.default_rng(seed).standard_normal(4000)
        np.testing.assert_allclose(numbers, expected, rtol=1e-12)
        assert np.abs(expected).max() > 3.4  # some come from the slow path


def test_json_is_written_as_python_writes_it(js):
    values = [
        0.1,
        1e-5,
        1e-4,
        1e15,
        1e16,
        123456789012345680.0,
        1e22,
        5e-324,
        -2.5,
        1.0,
        3,
        -0.0,
        0,
        2**80,
        'ä\u2028"\\\n\x7f',
        None,
        True,
    ]
    body = {"b": values, "a": {"ß": [], "z": {}, "\U0001f600": 1}}
    text = json.dumps(body)
    said = js('const j = await use("json.js"); return j.pythonJson(j.readJson(data));', text)
    assert said == json.dumps(body, sort_keys=True, separators=(",", ":"))
    written = js('const j = await use("json.js"); return j.pythonJson(data);', [v for v in values if v != 2**80])
    assert verify.digest({"x": json.loads(written)}) == verify.digest(
        {"x": json.loads(json.dumps(json.loads(written)))}
    )
    for bad in ('{"a": 1, "a": 2}', "[1,]", "[01]", "NaN", '"\n"', "[1] 2", '{"a" 1}', "[1"):
        sentence = js(
            'const j = await use("json.js"); try { j.readJson(data); return null; } catch (e) { return e.message; }',
            bad,
        )
        assert sentence and sentence.startswith("this is no JSON"), bad


def test_exact_arithmetic_and_logarithms(js):
    rng = np.random.default_rng(1)
    doubles = [*rng.normal(size=20).tolist(), 1e300, 1e-300, 5e-324, 0.5, 3.0, -0.75]
    found = js(
        """const {ratio, isqrt, sqrtUp, nearest, bitLength} = await use("exact.js");
        return data.map((x) => { const [m, k] = ratio(x), n = m * m + 1n;
          return [m.toString(), k, isqrt(n).toString(), sqrtUp(n, 9).toString(), bitLength(m), nearest(m, 1n <<
            BigInt(k)) === x]; });""",
        doubles,
    )
    for x, (m, k, root, up, bits, same) in zip(doubles, found):
        n = int(m) ** 2 + 1
        assert Fraction(x) == Fraction(int(m), 2**k) and math.isqrt(n) == int(root)
        assert verify.sqrt_up(n, 9) == int(up) and abs(int(m)).bit_length() == bits and same
    pairs = [(3, 2), (1, 7), (10**30, 10**9 + 7), (2**70 + 1, 2**70), (5, 5)]
    places = [-(30 << 160), -(1 << 158), 0, 1 << 160, (7 << 160) + 12345, 200 << 160]
    logs, exps = js(
        """const {logEnds, expAbove, softplusAbove} = await use("logs.js");
        return [data[0].map(([a, b]) => logEnds(BigInt(a), BigInt(b)).map(String)), data[1].map((x) =>
          [expAbove(BigInt(x)), softplusAbove(BigInt(x))].map(String))];""",
        [[[str(a), str(b)] for a, b in pairs], [str(x) for x in places]],
    )
    assert [tuple(map(int, one)) for one in logs] == [log_ends(a, b) for a, b in pairs]
    assert [tuple(map(int, one)) for one in exps] == [(exp_above(x), softplus_above(x)) for x in places]


def test_the_kernel_is_enclosed_as_in_python(js):
    rng = np.random.default_rng(5)
    rows = [*rng.integers(-200, 200, (8, 3)).tolist(), [0, 0, 0], [3, 6, 9], [1, 2, 3], [-1, -2, -3], [2, -1, 0]]
    found = js(
        """const {kernelEnds} = await use("angles.js"), rows = data.map((row) => row.map(BigInt));
        return rows.map((x) => rows.map((z) => kernelEnds(x, z).map(String)));""",
        rows,
    )
    low, high = verify.relu_kernel(np.array(rows))
    assert [[int(end) for end, _ in row] for row in found] == low.tolist()
    assert [[int(end) for _, end in row] for row in found] == high.tolist()


def test_links_keep_every_number_and_refuse_what_is_not_ours(js):
    states = js(
        """const {fresh, fromHash, toHash} = await use("state.js");
        const state = fresh([[1, -0.5, 1], [0.015625, 2, -1]], {bias: false, width: 37, scale: 0.25, rule: "gd", lr:
          0.3, decay: 0.003, loss: "exp", seed: 5, steps: 120});
        const refused = data.map((hash) => { try { fromHash(hash); return ""; } catch (error) { return error.message; } });
        return [state, fromHash(toHash(state)), refused];""",
        ["#hello", "#v=2", "#v=1&width=1e9", "#v=1&p=1_2", "#v=1&p=1_2p.x", "#v=1&rule=magic", "#v=1&seed=1.5",
          "#v=1&width=", "#v=1&p=99999_0p",
         "#v=1&p=" + ".".join(["1_1p"] * 151), "#v=1&bias=x", "#v=1&decay=1e-300"],
    )  # fmt: skip
    assert states[0] == states[1]
    assert all(one.startswith("This link is not one of ours") for one in states[2])


def test_tables_are_read_or_refused_with_a_sentence(js):
    tried = js(
        """const {readTable} = await use("state.js");
        return data.map((text) => { try { return readTable(text); } catch (error) { return error.message; } });""",
        ["x,y,label\n0.5,1,1\n-0.25;2;0\n", "1 2 b\n3 4 a", "", "1,2\n", "1,2,a\n1,2,b\n1,2,c", "x,y\nnan,1,1",
          "1e9,1,1", ",1,2,1\n,1,2,0", "1,2,\n3,4,1", "1,2,3,1\n1,2,3,0", "1,2,1\n" * 10_000, "1,2,1\n3,4,1.0"],
    )  # fmt: skip
    assert tried[0] == [[0.5, 1, 1], [-0.25, 2, -1]] and tried[1] == [[1, 2, 1], [3, 4, -1]]
    assert tried.pop() == [[1, 2, 1], [3, 4, 1]]  # 1 and 1.0 are one label
    assert all(isinstance(one, str) and one.endswith((".", "all.")) for one in tried[2:])
    assert "10,000" in tried[-1]


def test_every_module_says_what_it_does():
    for file in PAGE.glob("*.js"):
        text = file.read_text(encoding="utf-8")
        assert text.startswith("// ") and len(text.splitlines()) < 450, file.name
    checker = ("check", "circles", "exact", "logs", "angles", "json", "sha256")
    for name in checker:  # the checker and the search share no code
        for line in (PAGE / f"{name}.js").read_text(encoding="utf-8").splitlines():
            if line.startswith("import"):
                assert any(f'"./{other}.js"' in line for other in checker), line
