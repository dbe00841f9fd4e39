"""Margins of logits and their summaries, against the definitions evaluated one example at a time in many digits."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from widemargin.flows import losses
from widemargin.monitor import tally
from widemargin.monitor.record import Record, from_tally
from widemargin.types import InputError

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = {"logistic": losses.LOGISTIC, "exp": losses.EXP}


# ---------------------------------------------------------------- definitions


def exact_margins(logits: torch.Tensor, labels: torch.Tensor) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """Soft and hard margins of (N, K) logits, by the definition."""
    soft, hard = [], []
    for f, y in zip(logits.double().tolist(), labels.tolist()):
        others = [mpmath.mpf(v) for j, v in enumerate(f) if j != y]
        soft.append(mpmath.mpf(f[y]) - mpmath.log(mpmath.fsum(mpmath.exp(v) for v in others)))
        hard.append(mpmath.mpf(f[y]) - max(others))
    return soft, hard


def exact_record(soft: list[mpmath.mpf], loss: str) -> dict[str, float]:
    """Loss, psi and entropy of the dual variables, by the definition."""
    if loss == "exp":
        each = [mpmath.exp(-p) for p in soft]
        slopes = each
        psi = -mpmath.log(mpmath.fsum(each))
    else:
        each = [mpmath.log1p(mpmath.exp(-p)) for p in soft]
        slopes = [1 / (1 + mpmath.exp(p)) for p in soft]
        psi = -mpmath.log(mpmath.expm1(mpmath.fsum(each)))
    q = [s / mpmath.fsum(slopes) for s in slopes]
    return {
        "log_loss_sum": float(mpmath.log(mpmath.fsum(each))),
        "psi": float(psi),
        "dual_entropy": float(-mpmath.fsum(w * mpmath.log(w) for w in q)),
    }


def record_of(found: tally.Margins, loss: str = "logistic", levels: tuple[float, ...] = ()) -> Record:
    """A record of one batch, through a tally."""
    kept = tally.Tally(LOSSES[loss])
    kept.add(found)
    return record_of_tally(kept, loss, levels)


def record_of_tally(kept: tally.Tally, loss: str = "logistic", levels: tuple[float, ...] = ()) -> Record:
    assert kept.numbers is not None
    known = {"step": 0, "name": "test", "norm": 1.0, "degree": None}
    return from_tally(kept, LOSSES[loss], levels, "test", **known)


def given_margins(p: torch.Tensor, keep: torch.Tensor | None = None) -> tally.Margins:
    keep = torch.ones(len(p), dtype=torch.bool) if keep is None else keep
    return tally.Margins(p, p, keep, torch.zeros(len(p), dtype=torch.long), torch.tensor(0), 2)


def draw(*shape: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw_labels(*shape: int, classes: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


# ---------------------------------------------------------------- margins


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_margins_are_those_of_the_definition(classes: int) -> None:
    logits, labels = draw(50, classes), draw_labels(50, classes=classes)
    found = tally.margins(logits, labels)
    soft, hard = exact_margins(logits, labels)
    assert_allclose(found.soft, [float(p) for p in soft], rtol=0, atol=1e-13)
    assert_allclose(found.hard, [float(p) for p in hard], rtol=0, atol=1e-14)
    assert found.classes == classes
    assert found.keep.all()
    assert torch.equal(found.labels, labels)


def test_cross_entropy_is_the_logistic_loss_at_the_soft_margin() -> None:
    logits, labels = draw(200, 7), draw_labels(200, classes=7)
    p = tally.margins(logits, labels).soft
    assert_allclose(losses.LOGISTIC.log(p).exp(), cross_entropy(logits, labels, reduction="none"), rtol=1e-12)
    record = record_of(tally.margins(logits, labels))
    assert record.loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-12)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", [torch.int64, torch.int8, torch.float32, torch.float64])
@pytest.mark.parametrize("column", [False, True])
def test_one_output_has_the_signed_output_as_its_margin(signed: bool, kind: torch.dtype, column: bool) -> None:
    f, y = draw(60), draw_labels(60, classes=2)
    labels = (2 * y - 1 if signed else y).to(kind)
    found = tally.margins(f[:, None] if column else f, labels, "bce")
    assert_allclose(found.soft, f.numpy() * np.where(y == 1, 1, -1), rtol=0)
    assert torch.equal(found.soft, found.hard)
    assert torch.equal(found.labels, y)
    record = record_of(found)
    assert record.loss == pytest.approx(float(binary_cross_entropy_with_logits(f, y.double())), rel=1e-12)


def test_labels_of_one_output_may_be_true_and_false() -> None:
    f, y = draw(20), draw_labels(20, classes=2)
    assert torch.equal(tally.margins(f, y.bool(), "bce").soft, tally.margins(f, y, "bce").soft)


def test_several_labels_of_one_example_are_examples_each() -> None:
    f, y = draw(10, 4), draw_labels(10, 4, classes=2).double()
    record = record_of(tally.margins(f, y, "bce"))
    assert record.n == 40
    assert record.loss == pytest.approx(float(binary_cross_entropy_with_logits(f, y)), rel=1e-12)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_widened_first(kind: torch.dtype) -> None:
    logits, labels = draw(40, 5).to(kind), draw_labels(40, classes=5)
    found = tally.margins(logits, labels)
    soft, hard = exact_margins(logits, labels)
    assert found.soft.dtype == torch.float32
    assert_allclose(found.soft, [float(p) for p in soft], rtol=0, atol=4e-6)
    assert_allclose(found.hard, [float(p) for p in hard], rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_of_any_integer_type(kind: torch.dtype) -> None:
    labels = torch.arange(100) if kind == torch.int8 else torch.arange(160) % 200  # 156 is -100 in eight bits
    logits = draw(len(labels), 200)
    found = tally.margins(logits, labels.to(kind))
    assert found.keep.all()
    assert torch.equal(found.soft, tally.margins(logits, labels).soft)


@pytest.mark.parametrize("shape", [(), (6,), (4, 5), (3, 4, 5)])
def test_classes_in_the_last_axis_or_in_axis_1(shape: tuple[int, ...]) -> None:
    labels = draw_labels(*shape, classes=7)
    last = draw(*shape, 7)
    expected = exact_margins(last.reshape(-1, 7), labels.reshape(-1))[0]
    found = tally.margins(last, labels)
    assert_allclose(found.soft, [float(p) for p in expected], atol=1e-13)
    if len(shape) > 1:
        second = last.movedim(-1, 1)  # as torch's cross_entropy has it
        again = tally.margins(second, labels)
        assert torch.equal(again.soft, found.soft)
        assert torch.equal(again.labels, labels.reshape(-1))
        total = float(cross_entropy(second, labels, reduction="sum"))
        assert float(losses.LOGISTIC.log(again.soft).exp().sum()) == pytest.approx(total, rel=1e-12)


def test_as_many_tokens_as_classes_is_not_guessed() -> None:
    logits, labels = draw(3, 5, 5), draw_labels(3, 5, classes=5)
    with pytest.raises(InputError, match=r"may lie in the last axis or in axis 1; set class_axis to -1 or to 1"):
        tally.margins(logits, labels)
    last, second = (tally.margins(logits, labels, class_axis=axis).soft for axis in (-1, 1))
    assert_allclose(losses.LOGISTIC.log(last).exp().sum(), cross_entropy(logits.mT, labels, reduction="sum"))
    assert_allclose(losses.LOGISTIC.log(second).exp().sum(), cross_entropy(logits, labels, reduction="sum"))
    # a square of one example each is no such case
    assert tally.margins(draw(5, 5), draw_labels(5, classes=5)).soft.shape == (5,)


@pytest.mark.parametrize("layout", ["rows", "tokens", "shifted", "axis 1"])
@pytest.mark.parametrize("chunk", [1, 50, 64, 1000])
def test_chunks_do_not_change_margins(monkeypatch: pytest.MonkeyPatch, layout: str, chunk: int) -> None:
    logits, labels = draw(6, 9, 11), draw_labels(6, 9, classes=11)
    if layout == "rows":
        logits, labels = logits.reshape(-1, 11), labels.reshape(-1)
    if layout == "shifted":
        logits, labels = logits[:, :-1], labels[:, 1:]
    if layout == "axis 1":
        logits = logits.movedim(-1, 1).contiguous()
    whole = tally.margins(logits, labels)
    monkeypatch.setattr(tally, "CHUNK", chunk)
    monkeypatch.setattr(tally, "CACHE", chunk)
    parts = tally.margins(logits, labels)
    assert torch.equal(whole.soft, parts.soft)
    assert torch.equal(whole.hard, parts.hard)


def test_ignored_tokens_are_as_if_they_were_not_there() -> None:
    logits, labels = draw(4, 8, 7), draw_labels(4, 8, classes=7)
    labels[:, 5:] = -100
    found, rest = record_of(tally.margins(logits, labels)), record_of(tally.margins(logits[:, :5], labels[:, :5]))
    assert found.n == rest.n == 20
    for name in ("error", "loss", "margin", "margin_mean", "psi", "dual_entropy", "at_minimum"):
        assert getattr(found, name) == pytest.approx(getattr(rest, name), rel=1e-12), name
    for one, other in zip(found.classes, rest.classes, strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    padded = tally.margins(logits, torch.where(labels == -100, 4711, labels), ignore_index=4711)
    assert torch.equal(padded.keep, labels.reshape(-1) != -100)
    assert int(padded.bad) == 0


def test_masked_classes_are_no_competitors() -> None:
    logits, labels = draw(30, 6), draw_labels(30, classes=4)
    masked = logits.clone()
    masked[:, 4:] = -math.inf
    found, rest = tally.margins(masked, labels), tally.margins(logits[:, :4], labels)
    assert_allclose(found.soft, rest.soft, atol=1e-13)
    assert torch.equal(found.hard, rest.hard)


def test_infinite_margins_spoil_no_number() -> None:
    # one class left: the margin is infinite and the loss 0; the label masked: the loss is infinite
    inf = math.inf
    logits = torch.tensor([[1.0, -inf, -inf], [2.0, 1.0, -inf], [0.5, 1.0, -inf]], dtype=torch.float64)
    sure = record_of(tally.margins(logits, torch.tensor([0, 0, 1])), levels=(0.0, 0.5, 0.75, 1.0))
    finite = record_of(tally.margins(logits[1:], torch.tensor([0, 1])))
    for name in ("psi", "margin", "dual_entropy", "log_loss_sum"):
        assert getattr(sure, name) == pytest.approx(getattr(finite, name), rel=1e-12), name
    assert sure.quantiles == {0.0: 0.5, 0.5: 1.0, 0.75: inf, 1.0: inf}
    assert sure.hardest == (2, 1, 0)
    assert [row["dual_share"] for row in sure.classes] == pytest.approx([row["dual_share"] for row in finite.classes])
    only = record_of(tally.margins(logits[:1], torch.tensor([0])))
    assert (only.psi, only.margin, only.loss, only.dual_entropy) == (inf, inf, 0.0, 0.0)
    lost = record_of(tally.margins(logits, torch.tensor([0, 2, 1])), levels=(0.0, 0.25, 0.5))
    assert (lost.psi, lost.margin, lost.loss, lost.at_minimum) == (-inf, -inf, inf, 1)
    assert lost.quantiles == {0.0: -inf, 0.25: -inf, 0.5: 0.5}
    assert lost.error == pytest.approx(1 / 3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_counted(value: float) -> None:
    logits, labels = draw(5, 3), torch.tensor([0, 1, 2, 0, 1])
    logits[1, 1] = logits[2, 0] = value  # in the own class, in another one
    found = tally.margins(logits, labels)
    assert found.soft.isnan().tolist() == found.hard.isnan().tolist() == [False, True, True, False, False]
    with pytest.raises(InputError, match="2 examples have NaN or infinite logits"):
        record_of(found)
    one = tally.margins(torch.tensor([value, 1.0]), torch.tensor([1, 0]), "bce")
    with pytest.raises(InputError, match="1 examples have NaN or infinite logits"):
        record_of(one)
    labels[1:3] = -100  # ignored: nobody minds
    assert record_of(tally.margins(logits, labels)).n == 3


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("loss", ["logistic", "exp"])
@pytest.mark.parametrize("level", [-1e4, -700.0, -5.0, 0.0, 0.3, 8.0, 39.0, 41.0, 700.0, 1e4, 11512.9254649702])
def test_psi_and_dual_entropy_in_the_log_domain(loss: str, level: float) -> None:
    """Margins of 1e4, losses of 1e-5000 and of 1e4."""
    p = level + draw(40, scale=1.0)
    with mpmath.workdps(60):  # of numbers whose exponents have no bounds
        expected = exact_record([mpmath.mpf(float(v)) for v in p], loss)
    record = record_of(given_margins(p), loss)
    for name, value in expected.items():
        assert getattr(record, name) == pytest.approx(value, rel=1e-12, abs=1e-10), name
    assert record.psi <= float(p.min()) + 1e-12  # UH-5 (1)
    assert 1 <= record.effective <= 40
    q = torch.softmax(LOSSES[loss].log_slope(p), 0)
    assert record.effective == pytest.approx(math.exp(float(-(q * q.log()).sum())), rel=1e-9)


def test_limits_of_the_dual_entropy() -> None:
    equal = record_of(given_margins(torch.full((30,), 77.0, dtype=torch.float64)))
    assert equal.effective == pytest.approx(30, rel=1e-12)
    alone = record_of(given_margins(torch.tensor([1.0, 900.0, 900.0], dtype=torch.float64)))
    assert alone.effective == pytest.approx(1, abs=1e-12)
    wrong = record_of(given_margins(torch.tensor([-900.0, -1000.0, 900.0], dtype=torch.float64)))
    assert wrong.effective == pytest.approx(2, rel=1e-12)  # the slope of the logistic loss is at most 1


def test_psi_of_one_example_is_its_margin_and_positive_where_the_theorem_begins() -> None:
    for p in (-3.0, 0.0, 1e-3, 5.0, 1e4):
        record = record_of(given_margins(torch.tensor([p], dtype=torch.float64)))
        assert record.psi == pytest.approx(p, rel=1e-13, abs=1e-15)
    n = 5
    edge = -math.log(math.expm1(math.log(2) / n))  # n l(edge) = l(0)
    assert not record_of(given_margins(torch.full((n,), edge - 1e-9, dtype=torch.float64))).fitted
    assert record_of(given_margins(torch.full((n,), edge + 1e-9, dtype=torch.float64))).fitted


def test_huge_exponential_losses_are_infinite_and_their_logarithm_is_not() -> None:
    record = record_of(given_margins(torch.tensor([-800.0, 3.0], dtype=torch.float64)), "exp")
    assert record.loss == math.inf
    assert record.log_loss_sum == pytest.approx(800.0)
    assert record.psi == pytest.approx(-800.0)


def test_ties_are_errors() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 1.0], [3.0, 2.0, 3.0]])
    record = record_of(tally.margins(logits, torch.tensor([0, 0, 0, 1])))
    assert record.error == 0.75
    assert record_of(tally.margins(torch.zeros(4), torch.tensor([0, 1, 0, 1]), "bce")).error == 1.0


@pytest.mark.parametrize(
    ("margins", "count"),
    [
        ([1.0, 1.009, 1.011, 5.0], 2),
        ([-1.0, -0.991, -0.989, 5.0], 2),
        ([0.0, 0.0, 1e-9, 5.0], 2),
        ([2.0, 2.0, 2.0, 2.0], 4),
        ([7.0], 1),
    ],
)
def test_number_at_the_minimum(margins: list[float], count: int) -> None:
    assert record_of(given_margins(torch.tensor(margins, dtype=torch.float64))).at_minimum == count


def test_hardest_positions_count_all_tokens_and_come_in_order() -> None:
    p = torch.tensor([5.0, 1.0, 3.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    keep = torch.tensor([True, True, True, True, False, True])
    kept = tally.Tally(losses.LOGISTIC)
    kept.add(given_margins(p, keep))
    kept.add(given_margins(torch.tensor([0.5, 1.5], dtype=torch.float64)))
    assert record_of_tally(kept).hardest == (6, 1, 3, 7, 5, 2, 0)


def test_table_of_classes() -> None:
    logits, labels = draw(300, 6), draw_labels(300, classes=5)  # nothing of class 5
    labels[::7] = -100
    kept = tally.Tally(losses.LOGISTIC)
    for k in range(0, 300, 37):
        kept.add(tally.margins(logits[k : k + 37], labels[k : k + 37]))
    table = record_of_tally(kept).classes
    soft, hard = (np.array([float(p) for p in v]) for v in exact_margins(logits, labels.clamp_min(0)))
    slopes = 1 / (1 + np.exp(soft))
    valid = labels.numpy() != -100
    assert [row["class"] for row in table] == [0, 1, 2, 3, 4]
    for row in table:
        mine = valid & (labels.numpy() == row["class"])
        assert row["n"] == mine.sum()
        assert row["error"] == pytest.approx((hard[mine] <= 0).mean())
        assert row["margin"] == pytest.approx(hard[mine].min())
        assert row["margin_mean"] == pytest.approx(hard[mine].mean())
        assert row["dual_share"] == pytest.approx(slopes[mine].sum() / slopes[valid].sum(), rel=1e-10)
    assert all(type(value) in (int, float) for row in table for value in row.values())


def test_table_with_a_different_number_of_choices_in_each_batch_and_none_for_a_vocabulary() -> None:
    kept = tally.Tally(losses.LOGISTIC)
    for classes in (3, 5, 2):
        kept.add(tally.margins(draw(10, classes), torch.arange(10) % classes))
    assert [row["n"] for row in record_of_tally(kept).classes] == [4 + 2 + 5, 3 + 2 + 5, 3 + 2, 2, 2]
    many = tally.margins(draw(4, tally.CLASSES + 1), torch.arange(4))
    assert record_of(many).classes == ()


# ---------------------------------------------------------------- quantiles

LEVELS = (0.0, 0.013, 0.25, 0.5, 0.9, 1.0)


def test_quantiles_are_exact_up_to_the_sample_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "SAMPLE", 500)
    p = draw(700)
    keep = torch.arange(700) % 7 < 5  # 500 of them
    kept = tally.Tally(losses.LOGISTIC)
    for k in range(0, 700, 33):
        kept.add(given_margins(p[k : k + 33], keep[k : k + 33]))
    record = record_of_tally(kept, levels=LEVELS)
    assert record.exact
    for level, value in record.quantiles.items():
        assert value == pytest.approx(np.quantile(p[keep].numpy(), level), rel=1e-14), level
    kept.add(given_margins(draw(1)))
    assert not record_of_tally(kept).exact


def test_quantiles_beyond_are_of_a_fair_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank of a sample's quantile is off by at most eps with probability 1 - 2 exp(-2 s eps^2) (Dvoretzky, Kiefer, Wolfowitz,
    Massart; sampling without replacement is closer still). Margins grow with time, so that a sample of the first or last fails.
    """
    size, n = 2000, 40_000
    monkeypatch.setattr(tally, "SAMPLE", size)
    p = torch.linspace(0, 1, n, dtype=torch.float64)
    eps = math.sqrt(math.log(2 / 1e-9) / (2 * size)) + 1 / size
    records = []
    for batch in (700, 1313):
        kept = tally.Tally(losses.LOGISTIC, seed=3)
        for part in p.split(batch):
            kept.add(given_margins(part))
        assert kept.sample is not None
        assert kept.sample.shape == (2, size)
        records.append(record_of_tally(kept, levels=LEVELS[1:-1]))
    for level, value in records[0].quantiles.items():
        assert abs(value - level) < eps
        assert value != level
    assert records[0].quantiles == records[1].quantiles  # the sample depends on the seed, not on the batches
    assert not records[0].exact


def test_the_stated_rank_error_of_the_sample() -> None:
    """One standard deviation of the rank is at most 1 / (2 sqrt(SAMPLE))."""
    assert 1 / (2 * math.sqrt(tally.SAMPLE)) < 0.002


# ---------------------------------------------------------------- merging


def check_same(a: tally.Tally, b: tally.Tally) -> None:
    first, second = (record_of_tally(one, levels=LEVELS) for one in (a, b))
    for name in ("n", "error", "margin", "at_minimum", "exact"):
        assert getattr(first, name) == getattr(second, name), name
    for name in ("loss", "margin_mean", "psi", "log_loss_sum", "dual_entropy"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), rel=1e-10, abs=1e-10), name
    assert first.quantiles == pytest.approx(second.quantiles)
    for one, other in zip(first.classes, second.classes, strict=True):
        assert one == pytest.approx(other, rel=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_summaries_merge_in_any_order(data: st.DataObject) -> None:
    """Margins from -1e4 to 1e4, split anyhow, merged in any order and any tree: the same as all at once."""
    values = data.draw(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=30))
    keep = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    loss = data.draw(st.sampled_from([losses.LOGISTIC, losses.EXP]))
    p, kept = torch.tensor(values, dtype=torch.float64), torch.tensor(keep)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    bounds = list(zip([0, *cuts], [*cuts, len(values)]))
    zero = torch.tensor(0)
    rows = [tally.summary(p[a:b], p[a:b], kept[a:b], zero, loss) for a, b in bounds]
    order = data.draw(st.permutations(range(len(rows))))
    whole = tally.summary(p, p, kept, zero, loss)
    flat = tally.merge(torch.stack([rows[k] for k in order]))
    tree = rows[order[0]]
    for k in order[1:]:
        tree = tally.merge(torch.stack([tree, rows[k]]))
    torch.testing.assert_close(flat, whole, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(tree, whole, rtol=1e-9, atol=1e-8)


def test_summaries_of_many_rows_at_once() -> None:
    p, keep = draw(4, 3, 25), draw(4, 3, 25) > -4
    bad = torch.arange(12).reshape(4, 3)
    found = tally.summary(p, p - 1, keep, bad, losses.LOGISTIC)
    for i in range(4):
        for j in range(3):
            alone = tally.summary(p[i, j], p[i, j] - 1, keep[i, j], bad[i, j], losses.LOGISTIC)
            torch.testing.assert_close(found[i, j], alone, rtol=1e-13, atol=0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_tallies_merge_to_the_tally_of_all(order: tuple[int, ...]) -> None:
    logits, labels = draw(90, 5), draw_labels(90, classes=5)
    labels[::9] = -100
    whole, parts = tally.Tally(losses.LOGISTIC), []
    for k in range(3):
        found = tally.margins(logits[30 * k : 30 * k + 30], labels[30 * k : 30 * k + 30])
        whole.add(found)
        parts.append(tally.Tally(losses.LOGISTIC, seed=k))
        parts[-1].add(found)
    merged = tally.Tally(losses.LOGISTIC)
    merged.merge(tally.Tally(losses.LOGISTIC))  # a rank without data
    for k in order:
        merged.merge(parts[k].portable())
    check_same(merged, whole)


def test_samples_of_tallies_merge_fairly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, one with three times the data of the other: the merged sample holds them in that proportion."""
    size = 1000
    monkeypatch.setattr(tally, "SAMPLE", size)
    few, many = tally.Tally(losses.LOGISTIC, seed=0), tally.Tally(losses.LOGISTIC, seed=1)
    for _ in range(10):
        few.add(given_margins(torch.zeros(500)))
        many.add(given_margins(torch.ones(1500)))
    few.merge(many)
    assert few.sample is not None
    assert few.sample.shape == (2, size)
    share = float(few.sample[1].mean())
    assert abs(share - 0.75) < 6 * math.sqrt(0.75 * 0.25 / size)


def test_what_a_tally_holds_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "SAMPLE", 300)
    monkeypatch.setattr(tally, "SMALLEST", 64)
    kept = tally.Tally(losses.LOGISTIC)
    sizes = []
    for k in range(60):
        kept.add(tally.margins(draw(100, 10, seed=k), draw_labels(100, classes=10, seed=k)))
        held = [v for v in vars(kept).values() if isinstance(v, torch.Tensor)]
        sizes.append(sum(v.untyped_storage().nbytes() for v in held))
    assert sizes[5] == sizes[-1]
    assert kept.seen == record_of_tally(kept).n == 6000


def test_an_empty_batch_adds_nothing() -> None:
    kept, rest = tally.Tally(losses.LOGISTIC), tally.Tally(losses.LOGISTIC)
    found = tally.margins(draw(10, 3), draw_labels(10, classes=3))
    for shape in ((0,), (0, 4), (2, 0)):
        kept.add(tally.margins(torch.zeros(*shape, 3), torch.zeros(shape, dtype=torch.long)))
    with pytest.raises(InputError, match="there is no example to measure"):
        record_of_tally(kept)
    kept.add(found)
    rest.add(found)
    check_same(kept, rest)


# ---------------------------------------------------------------- bad input

LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("logits", "targets", "kind", "message"),
    [
        (torch.zeros(3, 4, dtype=torch.long), LABELS, "ce", r"floating point, not torch.int64; .* before any argmax"),
        (torch.zeros(3, 4), torch.rand(3), "ce", r"class indices .* smoothed labels have no margin"),
        (torch.zeros(3, 4), torch.rand(3, 4), "ce", r"class indices .* smoothed labels have no margin"),
        (torch.zeros(3, 4), torch.zeros(4).long(), "ce", r"logits \(3, 4\) and targets \(4,\) do not belong together"),
        (torch.zeros(3, 4), torch.zeros(3, 4).long(), "ce", r"do not belong together; cross-entropy needs"),
        (torch.zeros(3), LABELS, "ce", r'do not belong together.*loss="bce"'),
        (torch.zeros(()), torch.tensor(0), "ce", r"do not belong together"),
        (torch.zeros(3, 1), LABELS, "ce", r'one class only; .* use loss="bce"'),
        (torch.zeros(3, 4), LABELS, "bce", r'must be one number per example each; for several classes use loss="ce"'),
        (torch.zeros(3), torch.zeros(3, 1), "bce", r"must be one number per example each"),
        (np.zeros((3, 4)), LABELS, "ce", r"must be torch tensors, not a ndarray"),
        (torch.zeros(3, 4), [0, 1, 2], "ce", r"must be torch tensors, not a list"),
    ],
)
def test_bad_shapes_and_types(logits: object, targets: object, kind: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        tally.margins(logits, targets, kind)  # type: ignore[arg-type]


def test_an_axis_that_does_not_fit() -> None:
    with pytest.raises(InputError, match="do not belong together with the classes in axis 1"):
        tally.margins(torch.zeros(2, 5, 3), torch.zeros(2, 5).long(), class_axis=1)


@pytest.mark.parametrize(
    ("logits", "targets", "kind", "count"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 3, -1, 2]), "ce", 2),
        (torch.zeros(4, 3), torch.tensor([0, -100, 7, 2]), "ce", 1),
        (torch.zeros(4), torch.tensor([0, 1, 2, 1]), "bce", 1),
        (torch.zeros(4), torch.tensor([0.0, 0.5, 1.0, math.nan]), "bce", 2),
        (torch.zeros(4), torch.tensor([0, 1, -1, -1]), "bce", 2),  # 0 and -1 together: what is -1?
    ],
)
def test_labels_out_of_range(logits: torch.Tensor, targets: torch.Tensor, kind: str, count: int) -> None:
    with pytest.raises(InputError, match=rf"{count} labels are out of range; .*ignore_index"):
        record_of(tally.margins(logits, targets, kind))


def test_every_label_ignored() -> None:
    with pytest.raises(InputError, match="no example to measure; the data is empty or every label is ignored"):
        record_of(tally.margins(torch.zeros(3, 4), torch.full((3,), -100)))


# ---------------------------------------------------------------- normalising


def a_record(**changes: object) -> Record:
    known = {"step": 7, "name": "test", "norm": 2.0, "degree": 3}
    p = torch.tensor([4.0, 8.0], dtype=torch.float64)
    kept = tally.Tally(losses.LOGISTIC)
    kept.add(given_margins(p))
    assert kept.numbers is not None
    return from_tally(kept, losses.LOGISTIC, (0.5,), "x", **known | changes)


def test_normalised_margins() -> None:
    record = a_record()
    assert record.margin_normalized == 4.0 / 8
    assert record.psi_normalized == record.psi / 8


@pytest.mark.parametrize(("norm", "degree"), [(1e30, 12), (1e200, 2), (1e300, 2), (1e-200, 2), (1e6, 50), (1e20, 512)])
def test_huge_norms_neither_overflow_nor_vanish(norm: float, degree: int) -> None:
    found = a_record(norm=norm, degree=degree).margin_normalized
    assert found == pytest.approx(float(4 / mpmath.mpf(norm) ** degree), rel=1e-11)
    assert -found == a_record(norm=norm, degree=degree)._over_norm(-4.0)


def test_no_degree_no_normalised_margin() -> None:
    for record in (a_record(degree=None), a_record(norm=0.0), a_record(norm=math.nan)):
        assert math.isnan(record.margin_normalized)
        assert math.isnan(record.psi_normalized)
    assert a_record()._over_norm(0.0) == 0.0
    assert a_record()._over_norm(-math.inf) == -math.inf


def test_a_record_reads_well_and_is_plain() -> None:
    record = a_record(extra={"accuracy": 0.5}, blocks={"head": 1.5})
    assert str(record) == (
        "test, step 7: 2 examples, error 0, loss 0.009243, margin 4, psi 3.982, |w| 2, psi/|w|^3 0.4977"
    )
    assert "|w|" not in str(a_record(degree=None))
    found = record.as_dict()
    assert found["extra"] == {"accuracy": 0.5}
    assert found["psi_normalized"] == record.psi_normalized
    assert found["fitted"] is True
    assert found["quantiles"] == {0.5: 6.0}
    plain = [*found.values(), *found["quantiles"].values(), *found["blocks"].values(), *found["hardest"]]
    assert {type(value) for value in plain} <= {int, float, str, bool, dict, list}
    assert {"margin_q50", "norm/head", "accuracy", "effective"} <= set(record.scalars(everything=True))
    assert set(record.scalars()) == {
        "margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss", "accuracy"
    }  # fmt: skip
