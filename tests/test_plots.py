"""Pictures: drawn without a screen, with labels that do not overlap, of awkward certificates too."""

import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.testing import assert_allclose

from widemargin import Certificate, Dataset, InputError, Measure, Trajectory, margins, plots

XOR = Dataset([[1, 1], [-1, -1], [1, -1], [-1, 1]], [1, 1, -1, -1], name="xor $1 & 2$")
ROOT = np.sqrt(0.5)
BEST = np.sqrt(2) / 4  # of XOR, in closed form
WITNESS = Measure([[ROOT, ROOT], [-ROOT, -ROOT], [ROOT, -ROOT], [-ROOT, ROOT]], [0.25, 0.25, -0.25, -0.25])


def certificate(lower=BEST, upper=BEST, **keys):
    fields = {
        "kind": "f1",
        "dual": np.full(4, 0.25),
        "status": "certified",
        "proved": True,
        "bound": "tree",
        "n": 4,
        "d": 2,
        "primal": WITNESS,
        "data_name": XOR.name,
    }
    return Certificate(lower=lower, upper=upper, **(fields | keys))


def draw(figure):
    """A PNG, and no text on top of other text."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    boxes = []
    for axes in figure.axes:
        texts = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            texts += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes += [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_visible() and t.get_text()]
    inside = figure.bbox.expanded(1.001, 1.001)
    for i, (text, box) in enumerate(boxes):
        assert inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1), f"{text!r} leaves the picture"
        for other, second in boxes[:i]:
            assert not box.shrunk(0.9, 0.9).overlaps(second.shrunk(0.9, 0.9)), f"{text!r} and {other!r} overlap"
    figure.set_layout_engine("none")  # it has been laid out, which takes longer than drawing
    figure.set_dpi(40)
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)  # `savefig` draws twice
    assert file.getvalue().startswith(b"\x89PNG")
    return figure


def lines(axes):
    return [np.array(line.get_data(), dtype=float) for line in axes.lines]


@pytest.mark.parametrize(
    "certs",
    [
        [certificate()],
        [certificate(), margins.f2(XOR), margins.linear(XOR)],
        [certificate(), certificate(1e-7, 2e-6, kind="rf", convention="M7"), certificate(0.01, 0.02, kind="frozen")],
        [certificate(0.0, 0.0, status="not-separable", primal=None)],
        [certificate(0.1, np.inf, status="time-limit", proved=False)],
        [certificate(0.1, 0.4, activation="srelu", kind="f2", convention="M7")],
    ],
)
@pytest.mark.parametrize("marks", [None, {"4 neurons": 0.34, "two": 0.2}])
def test_intervals(certs, marks):
    figure = draw(plots.intervals(certs, marks))
    (axes,) = figure.axes
    said = " ".join(text.get_text() for text in axes.texts)
    names = " ".join(label.get_text() for label in axes.get_yticklabels())
    for cert in certs:
        assert f"[{cert.lower:.6g}, {cert.upper:.6g}]" in said and cert.status in said
        assert f"({cert.convention})" in names
    assert ("not proved" in said) == (not all(cert.proved for cert in certs))
    left, right = axes.get_xlim()
    assert all(left <= value <= right for value in (marks or {}).values())


def test_far_apart_margins_are_on_a_logarithmic_axis():
    near, far = plots.intervals([certificate()]), plots.intervals([certificate(), certificate(1e-5, 1e-5)])
    assert (near.axes[0].get_xscale(), far.axes[0].get_xscale()) == ("linear", "log")


def test_neurons():
    plane, bars = draw(plots.neurons(WITNESS)).axes
    assert_allclose(plane.collections[0].get_offsets(), WITNESS.theta)
    assert_allclose([bar.get_height() for bar in bars.patches], 0.25)
    said = [text.get_text() for text in bars.get_legend().get_texts()]
    assert said == ["positive mass (2)", "negative mass (2)"]


def test_neurons_counts_the_small_ones():
    many = Measure(np.eye(300), np.concatenate([[1.0, -2.0], np.full(298, 1e-5)]))
    plane, bars = draw(plots.neurons(many, axes=(1, 0))).axes
    assert "2 neurons (298 more" in bars._left_title.get_text()
    assert "coordinate 2" in plane.get_xlabel()
    spread = Measure(np.random.default_rng(0).uniform(1, 2, (200, 3)), np.ones(200))
    assert len(draw(plots.neurons(spread)).axes[1].patches) == 200


@pytest.mark.parametrize("axes", [(0, 0), (0, 2), (-1, 1)])
def test_neurons_refuses(axes):
    with pytest.raises(InputError, match="two different coordinates"):
        plots.neurons(WITNESS, axes)


@pytest.mark.parametrize(
    "records",
    [
        [(0.1, 0.0, np.inf, "start"), (1.0, 0.2, np.inf, "a"), (2.0, 0.3, 0.5, "b"), (3.0, 0.29, 0.36, "c")],
        [(0.0, 0.0, np.inf, "")],
        [(0.5, -np.inf, np.nan, "")],
        [(0.5, 0.3, 0.3, "")],
        [(0.5, 0.0, 0.0, ""), (0.6, 0.0, 0.0, "")],
    ],
)
def test_progress(records):
    axes, gaps = draw(plots.progress(records)).axes
    assert axes.get_xlabel() == gaps.get_xlabel() == "seconds"
    assert axes.get_ylim()[0] == 0


def test_progress_draws_the_best_bounds():
    axes, gaps = plots.progress([(1.0, 0.3, 0.5, ""), (2.0, 0.2, 0.4, ""), (3.0, 0.3, 0.6, "")]).axes
    upper, lower = lines(axes)[:2]
    assert_allclose(upper[1], [0.5, 0.4, 0.4])
    assert_allclose(lower[1], [0.3, 0.3, 0.3])
    assert_allclose(lines(gaps)[0][1], [0.4, 0.25, 0.25])
    with pytest.raises(InputError, match="no records"):
        plots.progress([])


def test_decision():
    shifted = Dataset(XOR.X + 5.0, XOR.y, classes=("cat", "dog"))
    for cert, data in (
        (certificate(), XOR),
        (margins.random_features(shifted, 50, bias=True), shifted),
        (margins.linear(Dataset([[0, 0], [1, 0]], [1, -1]), bias=True), Dataset([[0, 0], [1, 0]], [1, -1])),
    ):
        figure = draw(plots.decision(cert, data))
        assert cert.convention in figure.axes[0]._left_title.get_text()


@pytest.mark.parametrize(
    "make", [lambda: certificate(), lambda: margins.frozen(XOR, 50), lambda: margins.linear(XOR, bias=True)]
)
def test_the_function_reaches_the_margin(make):
    """What `decision` draws has norm 1: its smallest margin is the certificate's lower bound."""
    cert = make()
    if cert.lower > 0:
        assert_allclose((XOR.y * cert.function(XOR.X)).min(), cert.lower, rtol=1e-9)
    else:
        with pytest.raises(InputError, match="holds no function"):
            plots.decision(cert, XOR)


def test_random_features_reach_the_margin():
    cert = margins.random_features(XOR, 40, bias=True)
    assert_allclose((XOR.y * cert.function(XOR.X)).min(), cert.lower, rtol=1e-6)


def test_decision_refuses():
    with pytest.raises(InputError, match="2 features"):
        plots.decision(certificate(), Dataset(np.eye(3), [1, -1, 1]))
    with pytest.raises(InputError, match="holds no function, only a projection"):
        plots.decision(margins.projected(XOR, 1), XOR)
    draw(plots.decision(margins.f2(XOR), XOR))
    draw(plots.decision(margins.projected(XOR, 1), XOR, lambda X: X[:, 0] * X[:, 1]))
    with pytest.raises(InputError, match="no certificate"):
        plots.intervals([])


# ---------------------------------------------------------------- a monitor's records


def columns(step, psi, norm=2.0, whole=True, degree=2.0, **more):
    """Columns of one data set, as `monitor.series` has them."""
    step, psi = np.asarray(step), np.asarray(psi, dtype=float)
    one = np.ones(len(step))
    found = {
        "step": step, "whole": np.full(len(step), whole), "degree": degree * one, "norm": norm * one, "n": 40 * one,
        "psi": psi, "margin": psi + 1, "psi_normalized": psi / norm**2, "margin_normalized": (psi + 1) / norm**2,
        "error": np.where(psi > -1, 0.0, 0.2), "loss": np.exp(np.minimum(-psi, 9.0)), "effective": 10 * one,
    }  # fmt: skip
    if whole:
        found |= {f"margin_q{level}": psi + 1 + level / 20 for level in (0, 1, 10, 25, 50, 75, 90)}
        found |= {"at_minimum": one, "norm/0": np.linspace(1, 3, len(step)), "norm/a $ name": one}
    return found | {key: np.asarray(value) for key, value in more.items()}


STEPS = np.unique(np.geomspace(1, 5000, 60).astype(int))


def test_records():
    psi = np.log(STEPS / 100)
    figure = draw(plots.records({"train": columns(STEPS, psi), "test": columns(STEPS, psi - 9)}, "Net, w $"))
    top, error, loss, norm, fan, effective = figure.axes
    fitted = STEPS[STEPS > 100][0]
    assert f"at step {fitted}" in figure.get_suptitle()
    for axes in figure.axes:
        assert axes.get_xscale() == "log" and axes.get_xlim() == (1, STEPS[-1])
        marked = [line for line in axes.lines if line.get_linestyle() == ":" and len(set(line.get_xdata())) == 1]
        assert [line.get_xdata()[0] for line in marked] == [fitted]
    hard, smooth = lines(top)[:2]
    assert_allclose(smooth, [STEPS, psi / 4])
    assert_allclose(hard, [STEPS, (psi + 1) / 4])
    assert "ends at 0.978" in top.get_legend().get_texts()[1].get_text() and r"\psi/|w|^{2}" in str(
        top.get_legend_handles_labels()
    )
    assert error.get_yscale() == "linear" and loss.get_yscale() == "log" and norm.get_yscale() == "log"
    assert_allclose(lines(loss)[1][1], np.exp(np.minimum(9 - psi, 9)))  # test
    assert_allclose(lines(fan)[0][1], (psi + 1 + 2.5) / 4)  # the median, in units of |w|^2
    outer, inner = (band.get_paths()[0].vertices for band in fan.collections)
    assert_allclose([outer[:, 1].max(), inner[:, 1].max()], [(psi[-1] + 1 + 4.5) / 4, (psi[-1] + 1 + 3.75) / 4])
    assert [text.get_text() for text in fan.get_legend().get_texts()] == [
        "10 % to 90 %",
        "25 % to 75 %",
        "median",
        "smallest",
    ]
    assert_allclose(lines(effective)[1][1], 10)


def test_an_error_of_zero_is_in_the_picture():
    error = [0.9, 0.3, 0.02, 0.001, 0.0, 0.0]
    axes = draw(plots.records({"train": columns(range(1, 7), np.arange(6), error=error)})).axes[1]
    assert_allclose(lines(axes)[0][1], error)
    assert axes.get_yscale() == "symlog" and axes.get_ylim()[0] <= 0
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "0.001", "0.01", "0.1", "1"]


@pytest.mark.parametrize(
    ("series", "panels"),
    [
        ({"step": columns([1], [2.0], whole=False)}, 5),  # one record
        ({"step": columns(range(60), np.full(60, -1024.0), whole=False)}, 6),  # never fitted: how far it is
        (
            {"step": columns([0, 0, 0], [1.0, np.nan, np.inf], whole=False)},
            5,
        ),  # steps that are not counted, broken numbers
        ({"probe": columns([5, 9], [-1.0, 2.0]), "step": columns(range(1, 90), np.ones(89), whole=False)}, 6),
        (
            {
                "val": columns(
                    [1, 2], [1.0, 2.0], degree=np.nan, psi_normalized=[np.nan] * 2, margin_normalized=[np.nan] * 2
                )
            },
            6,
        ),
        ({name: columns(STEPS, np.log(STEPS / 50) + k) for k, name in enumerate("abcdefgh")}, 6),
        (
            {
                "a" * 80: columns(
                    STEPS, np.log(STEPS), norm=1e150, psi_normalized=0 * STEPS, margin_normalized=0 * STEPS
                )
            },
            6,
        ),
    ],
    ids=["one", "unfitted", "broken", "batches", "unnormalised", "many", "long"],
)
def test_awkward_records(series, panels):
    figure = draw(plots.records(series))
    assert sum(axes.get_visible() for axes in figure.axes) == panels


def test_before_fitting_what_there_is_is_shown():
    series = {"train": columns([1, 2, 3], [-9.0, -5.0, -2.0], excess=[9000.0, 150.0, 10.0])}
    figure = draw(plots.records(series, "Net"))
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles[0].startswith("Margins of the examples") and "To the theorem, train" in titles
    assert not any("Normalised" in one for one in titles)
    fan = next(axes for axes in figure.axes if axes.get_title(loc="left") == titles[0])
    assert {"median", "smallest", "10 % to 90 %"} <= {text.get_text() for text in fan.get_legend().get_texts()}
    panel = next(axes for axes in figure.axes if axes.get_title(loc="left").startswith("To the theorem"))
    assert panel.get_lines()[0].get_ydata().tolist() == [9000.0, 150.0, 10.0] and panel.get_yscale() == "log"
    assert "not fitted. 80 % are right; the theorem begins when the mean loss is below" in figure.get_suptitle()
    assert "(10 times that)" in figure.get_suptitle()
    fitted = draw(plots.records({"train": columns([1, 2, 3], [-9.0, 1.0, 2.0])}))
    assert fitted.axes[0].get_title(loc="left") == "Normalised margins, train"


def test_a_norm_that_means_little_and_what_is_a_heuristic():
    more = {"growth": [50.0] * 2, "margin_over_layers": [2.0, 4.0], "margin_over_gradient": [0.1, 0.2]}
    figure = draw(plots.records({"train": columns([1, 2], [1.0, 2.0], **more)}))
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles[0] == "Margins over a norm that means little, train"
    assert "The scale of other parameters is free" in figure.get_suptitle()
    (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Heuristics")]
    np.testing.assert_allclose(panel.get_lines()[0].get_ydata(), [0.5, 1.0])
    held = draw(plots.records({"train": columns([1, 2], [1.0, 2.0], growth=[1.0, 1.0])}))
    assert "free" not in held.get_suptitle()


def test_a_hundred_thousand_records_are_thinned():
    step = np.arange(1, 100_001)
    series = {"step": columns(step, np.log(step), whole=False)}
    for x, y in lines(plots.records(series).axes[0])[:2]:
        assert (
            500 < len(x) <= plots.style.POINTS
            and (x[0], x[-1]) == (1, 100_000)
            and y[-1]
            in (
                np.log(1e5) / 4,
                (np.log(1e5) + 1) / 4,
            )
        )


def test_records_refuses():
    with pytest.raises(InputError, match="no records"):
        plots.records({})
    with pytest.raises(InputError, match="no records"):
        plots.records({"train": columns([], [])})


def test_pyplot_stays_out():
    def known() -> list[int]:  # another test of the same process may have used pyplot itself
        return sys.modules["matplotlib.pyplot"].get_fignums() if "matplotlib.pyplot" in sys.modules else []

    before = known()
    plots.intervals([certificate()])
    assert known() == before


def along(**more):
    """A path of four decays, the first of which has a constant network."""
    return {
        "weight_decay": np.array([0.1, 1e-2, 1e-5, 1e-9]),
        "lower": np.array([0.69, 0.2, 1e-3, 1e-7]),
        "upper": np.array([0.69, 0.21, 1.1e-3, 1.1e-7]),
        "loss": np.array([0.69, 0.1, 1e-4, 1e-8]),
        "norm": np.array([0, 4.0, 30.0, 90.0]),
        "margin": np.array([np.nan, -0.5, 0.06, 0.08]),
        "error": np.array([0.5, 0.25, 0, 0]),
        "neurons": np.array([0.0, 2, 3, 3]),
    } | {name: np.array(values) for name, values in more.items()}


def test_path_with_what_is_guaranteed():
    figure = draw(plots.path(along(guaranteed=[-np.inf, -np.inf, 0.03, 0.06], largest=[0.085] * 4), "a $ name"))
    axes = figure.axes[2]
    largest, margin, sure = lines(axes)[:3]
    assert (largest[1] == 0.085).all()
    assert_allclose(margin[1][1:], [-0.5, 0.06, 0.08])
    assert_allclose(sure[1], [np.nan, np.nan, 0.03, 0.06])
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "guaranteed (WM-4), ends at 0.06" in words and "largest, no output bias: 0.085" in words
    assert -0.1 < axes.get_ylim()[0] < 0 < 0.085 < axes.get_ylim()[1]  # the far negative margin does not set the scale


def test_path_of_values_or_without_guarantees():
    plain = plots.path(along())
    assert len(plain.axes) == 3 and len(plain.axes[2].get_legend().get_texts()) == 1
    nothing = plots.path(along(guaranteed=[-np.inf] * 4, largest=[0.085] * 4))
    assert "nothing here" in nothing.axes[2].get_legend().get_texts()[-1].get_text()
    values = draw(plots.path(along(margin=[np.nan] * 4, error=[np.nan] * 4)))
    assert len(values.axes) == 2
    with pytest.raises(InputError, match="no points to draw"):
        plots.path({name: column[:0] for name, column in along().items()})


def test_path_of_zero_networks():
    """Decays above the largest that has an effect: nothing is above 0, and a logarithmic axis has no place for it."""
    zero = draw(plots.path(along(norm=[0.0] * 4, neurons=[0.0] * 4, margin=[0.0] * 4)))
    norm, neurons = lines(zero.axes[1])[:2]
    assert (norm[1] == 0).all() and (neurons[1] == 0).all() and zero.axes[1].get_yscale() == "linear"
    names = ("lower", "upper", "loss", "error", "norm", "neurons", "margin")
    nothing = draw(plots.path(along(**{name: [0.0] * 4 for name in names})))  # squared loss of targets that are 0
    assert [axes.get_xscale() for axes in nothing.axes] == ["log"] * 3


def test_pictures_and_pages_have_the_same_colours(tmp_path):
    """One name, one colour: in the PNG of `plot` and on the page of `report`."""
    from widemargin import report
    from widemargin.monitor import store
    from widemargin.monitor.record import Record

    one = store.Store(tmp_path / "run", {"model": "Net", "loss": "ce", "parameters": 3, "homogeneous": None})
    for name in ("step", "val", "train", "test"):
        for step in (1, 2, 3, 4, 5):
            one.append(
                [
                    Record(
                        step=step, name=name, whole=name != "step", n=9, error=0.1, loss=0.3, margin=1.0, margin_mean=2.0,
                        quantiles={0.5: 2.0}, exact=True, psi=0.5, log_loss_sum=-1.0, norm=2.0, degree=2, at_minimum=1,
                        dual_entropy=0.0,
                    )
                ]
            )  # fmt: skip
    one.close()
    figure = plots.records(store.series(tmp_path / "run"))
    panel = next(axes for axes in figure.axes if axes.get_title(loc="left") == "Error")
    lines = zip(panel.get_legend().get_texts(), panel.get_lines())
    drawn = {text.get_text().partition(" ")[0].strip(","): line.get_color() for text, line in lines}
    (page,) = report.build(tmp_path / "run").sections
    part = page.render().partition('aria-label="Error"')[2]
    traces = json.loads(re.search(r'data-figure="[^"]+">(.*?)</script>', part, re.S)[1])["data"]
    names = {"#1f6fb4": "@plus", "#d9661f": "@minus", "#2f8f5b": "@third", "#8a8a8a": "@quiet/0.6"}
    shown = {trace["name"].partition(" ")[0].strip(","): trace["line"]["color"] for trace in traces}
    assert shown == {name: names[colour] for name, colour in drawn.items()} and len(shown) == 4


def test_a_decision_of_a_table_has_its_names_and_needs_a_certificate():
    table = pd.DataFrame({"height [m]": [1.0, -1.0, 0.5], "weight": [0.2, 0.1, -1.0], "kind": ["a", "b", "a"]})
    cert = margins.f2(table, "kind")
    axes = plots.decision(cert, table, "kind").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("height [m]", "weight")
    with pytest.raises(InputError, match=r"is of a certificate, such as margins\.f1 returns, not Measure"):
        plots.decision(margins.f1(table, "kind").primal, table, "kind")


def test_names_that_are_no_mathematics_and_have_no_sign():
    names = ["a$^{$", "b\0\x1b"]
    table = pd.DataFrame({"x": [1.0, -1.0, 0.5], "z": [0.2, 0.1, -1.0], "kind": [names[0], names[1], names[0]]})
    said = draw(plots.decision(margins.f2(table, "kind"), table, "kind")).axes[0].get_legend().get_texts()
    assert [text.get_text() for text in said] == ["label b??", r"label a\$^{\$"]
    figure = draw(plots.records({"train": columns(STEPS, np.log(STEPS / 100))}, "run\0, $^{$"))
    assert figure.get_suptitle().startswith(r"run?, \$^{\$. ")


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_a_run_with_numbers_as_large_as_floats_are_is_drawn(trials):
    """As damaged files have them: what overflows is left out, without a warning."""
    large = np.array([[1.0], [1e308], [-1.7e308], [np.inf]]) * np.ones(trials)
    named = {name: large for name in ("margin_M2", "log_risk", "norm", "kkt_residual", "displacement")}
    run = Trajectory(np.array([1, 10, 100, 1000]), named, {}, ("finished",) * trials)
    margin, _, norm = draw(plots.trajectory(run, (1e-300, 1e300))).axes
    for axes in (margin, norm):  # of four values the first is left: no bound and no later one stretches the axis
        assert {float(y) for line in axes.lines for y in np.ravel(line.get_ydata()) if np.isfinite(y) and y} == {1.0}
        assert np.isfinite(axes.get_ylim()).all() and max(map(abs, axes.get_ylim())) < 100
    figure = draw(plots.records({"train": columns(STEPS, 1e306 * np.log(STEPS / 100))}))
    assert all(np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all() for axes in figure.axes)
    assert max(abs(end) for axes in figure.axes for end in axes.get_ylim()) < 1e151


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["nonsense", "module://no.such.module", "tkagg"])
def test_files_need_no_backend(backend, tmp_path):
    """A name that is no backend ends the import of matplotlib; what is set stays set, for whoever opens windows."""
    code = (
        "import os, sys; from widemargin import cli, plots; from widemargin.papers import drawing; drawing.figure_of(1, 1); "
        "import matplotlib; assert os.environ['MPLBACKEND'] == sys.argv[1]; "
        "assert (matplotlib.rcParams._get('backend') == sys.argv[1]) == (sys.argv[1] != 'nonsense'); "
        "sys.exit(cli.main(['fit', 'clusters:n=4,d=2', '--path', '2', '--plot', sys.argv[2]]))"
    )
    command = [sys.executable, "-c", code, backend, str(tmp_path / "path.svg")]
    env = os.environ | {"MPLBACKEND": backend}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)
    assert done.returncode == 0 and "drawn to" in done.stderr, done.stderr
    assert (tmp_path / "path.svg").read_text().startswith("<?xml")
