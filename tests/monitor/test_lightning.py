"""The Lightning callback, against the real library: its records are those of a monitor used by hand on the same model."""

import math
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from widemargin.monitor import MarginMonitor, load
from widemargin.types import InputError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.loggers import CSVLogger

from widemargin.monitor.lightning import LightningMargins

# Lightning's own advice (workers, logging intervals) and what it calls of torch are not ours to mend.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
WATCHED = ("margin", "psi", "norm", "error", "loss", "psi_normalized", "n")


class Net(pl.LightningModule):
    def __init__(self, returns: bool = True, lr: float = 0.1, dropout: float = 0.0):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(
            nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3, bias=False)
        )
        self.returns, self.lr = returns, lr
        self.seen: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)  # not self(x): the module's own forward pass is not seen by hooks
        self.seen.append((logits.detach().clone(), {k: v.clone() for k, v in self.state_dict().items()}))
        loss = nn.functional.cross_entropy(logits, y)
        return {"loss": loss, "logits": logits, "targets": y} if self.returns else loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def _data(n: int = 24, seed: int = 0) -> TensorDataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=g)
    return TensorDataset(x, (x @ torch.randn(4, 3, generator=g)).argmax(1))


def _loader(n: int = 24, seed: int = 0, size: int = 8, **options) -> DataLoader:
    return DataLoader(_data(n, seed), batch_size=size, **options)


def _trainer(tmp_path: Path, callbacks, **options) -> pl.Trainer:
    known = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
    }
    return pl.Trainer(callbacks=callbacks, **{**known, **options})


def assert_same(record, other) -> None:
    for name in WATCHED:
        assert getattr(record, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9), name


def test_validation_data_is_measured_as_by_hand(tmp_path):
    model, callback = Net(returns=False), LightningMargins()
    trainer = _trainer(tmp_path, callback)  # alone, not in a list: it is the library's kind of callback
    trainer.fit(model, _loader(), _loader(seed=1))
    assert [(one.name, one.step) for one in callback.records] == [("val", 3), ("val", 6)]
    by_hand = MarginMonitor(model).measure(_loader(seed=1), "val")
    assert_same(callback.records[-1], by_hand)
    assert callback.records[0].margin != callback.records[1].margin
    assert callback.monitor.homogeneous.names == ("net.0.weight", "net.3.weight")
    assert callback.monitor.homogeneous.degree == 2
    assert float(trainer.callback_metrics["margin/val/psi"]) == pytest.approx(by_hand.psi, rel=1e-5)


def test_training_forward_is_used_with_the_norm_before_the_step(tmp_path):
    model, callback = Net(lr=0.5), LightningMargins(every=1)
    _trainer(tmp_path, [callback], max_epochs=1).fit(model, _loader())
    y = _data().tensors[1].reshape(3, 8)
    assert [(one.name, one.step) for one in callback.records] == [("step", 1), ("step", 2), ("step", 3)]
    for record, (logits, state), labels in zip(callback.records, model.seen, y):
        own = logits.gather(1, labels[:, None])[:, 0]
        others = logits.scatter(1, labels[:, None], -math.inf).amax(1)
        assert record.margin == pytest.approx(float((own - others).min()), rel=1e-6)
        assert record.norm**2 == pytest.approx(sum(float(v.double().square().sum()) for v in state.values()), rel=1e-6)
        assert record.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), rel=1e-5)


def test_accumulated_batches_make_one_record(tmp_path):
    model, callback = Net(), LightningMargins(every=1)
    _trainer(tmp_path, [callback], max_epochs=1, accumulate_grad_batches=2).fit(model, _loader())
    assert [(one.step, one.n) for one in callback.records] == [
        (1, 16),
        (2, 8),
    ]  # the last batch of an epoch steps alone
    (first, state), (second, _), _ = model.seen
    labels = _data().tensors[1][:16]
    loss = nn.functional.cross_entropy(torch.cat([first, second]), labels)
    assert callback.records[0].loss == pytest.approx(float(loss), rel=1e-5)
    norm = math.sqrt(sum(float(v.double().square().sum()) for v in state.values()))
    assert callback.records[0].norm == pytest.approx(norm, rel=1e-6)


def test_every_counts_optimiser_steps(tmp_path):
    callback = LightningMargins(_loader(seed=1), every=4, every_n_steps=3)
    _trainer(tmp_path, [callback], max_epochs=3).fit(Net(), _loader())
    assert [one.step for one in callback.records if one.name == "step"] == [1, 5, 9]
    assert [one.step for one in callback.records if one.name == "data"] == [3, 6, 9]


def test_given_data_is_measured_at_the_end_of_epochs(tmp_path):
    data = {"train": _loader(), "test": _loader(seed=2)}
    model, callback = Net(returns=False), LightningMargins(data, every_n_epochs=2)
    _trainer(tmp_path, [callback], max_epochs=4).fit(model, _loader())
    assert [(one.name, one.step) for one in callback.records] == [(k, s) for s in (6, 12) for k in ("train", "test")]
    assert_same(callback.records[-1], MarginMonitor(model).measure(_loader(seed=2), "test"))


def test_limits_and_several_loaders(tmp_path):
    callback = LightningMargins()
    trainer = _trainer(tmp_path, [callback], limit_val_batches=2, max_epochs=1)
    trainer.fit(Net(returns=False), _loader(), [_loader(seed=1), _loader(seed=2, size=4)])
    assert [(one.name, one.n) for one in callback.records] == [("val_0", 16), ("val_1", 8)]


def test_training_does_not_notice(tmp_path):
    """Same parameters, bit for bit, with dropout, shuffled loaders and a generator of their own."""

    def train(callbacks):
        model = Net(dropout=0.5)
        torch.manual_seed(7)
        loader = _loader(shuffle=True, generator=torch.Generator().manual_seed(5))
        _trainer(tmp_path, callbacks, max_epochs=3).fit(model, loader, _loader(seed=1, shuffle=True))
        return model.state_dict(), torch.get_rng_state()

    plain, state = train([])
    watched, after = train([LightningMargins({"a": _loader(shuffle=True)}, every=1, every_n_steps=1)])
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name
    assert torch.equal(state, after)


def test_modes_are_left(tmp_path):
    class Frozen(Net):
        def on_train_epoch_start(self):
            self.net[2].eval()

    modes = []

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            modes.append([m.training for m in module.modules()])

    callbacks = [LightningMargins(_loader(seed=1), every_n_steps=1), Look()]
    _trainer(tmp_path, callbacks, max_epochs=1).fit(Frozen(), _loader())
    assert modes == [[True, True, True, True, False, True]] * 3


def test_loggers_get_few_scalars_once(tmp_path):
    logger = CSVLogger(tmp_path, "log")
    callback = LightningMargins()
    _trainer(tmp_path, [callback], logger=logger, log_every_n_steps=2).fit(Net(), _loader(), _loader(seed=1))
    table = __import__("pandas").read_csv(Path(logger.log_dir) / "metrics.csv")
    names = {name for name in table.columns if name.startswith("margin/")}
    few = {"margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss"}
    assert names == {f"margin/{name}" for name in few} | {f"margin/val/{name}" for name in few}
    rows = table.dropna(subset=["margin/val/psi"])
    assert rows["step"].tolist() == [3, 6]
    expected = [one.psi for one in callback.records if one.name == "val"]
    assert rows["margin/val/psi"].tolist() == pytest.approx(expected, rel=1e-6)
    assert table.dropna(subset=["margin/psi"])["step"].tolist() == [1, 3, 5]


def test_checkpoints_by_margin_and_resuming(tmp_path):
    out = tmp_path / "run"
    best = ModelCheckpoint(tmp_path / "kept", monitor="margin/val/margin", mode="max", save_top_k=-1, save_last=True)
    first = LightningMargins(out=out, every=1)
    trainer = _trainer(tmp_path, [first, best], enable_checkpointing=True)
    trainer.fit(Net(), _loader(), _loader(seed=1))
    margins = [one.margin for one in first.records if one.name == "val"]
    assert float(best.best_model_score) == pytest.approx(max(margins), rel=1e-5)
    again = LightningMargins(out=out, every=1)
    model = Net()
    best = ModelCheckpoint(
        tmp_path / "kept", monitor="margin/val/margin", mode="max"
    )  # finds its metric from the start
    _trainer(tmp_path, [again, best], max_epochs=4, enable_checkpointing=True).fit(
        model, _loader(), _loader(seed=1), ckpt_path=tmp_path / "kept" / "last.ckpt"
    )
    assert [(one.name, one.step) for one in again.records if one.name == "val"] == [("val", 9), ("val", 12)]
    assert [one.step for one in again.records if one.name == "step"] == [7, 8, 9, 10, 11, 12]
    assert again.monitor.homogeneous == first.monitor.homogeneous  # evidence and all: it was not looked for again
    table = load(out).to_pandas()
    assert table[table["name"] == "val"]["step"].tolist() == [3, 6, 9, 12]
    assert_same(again.records[-1], MarginMonitor(model).measure(_loader(seed=1), "val"))


def test_fit_twice(tmp_path):
    model, callback = Net(), LightningMargins(out=tmp_path / "run", every=1)
    _trainer(tmp_path, [callback], max_epochs=1).fit(model, _loader(), _loader(seed=1))
    found = callback.monitor.homogeneous
    _trainer(tmp_path, [callback], max_epochs=1).fit(model, _loader(), _loader(seed=1))
    assert [(one.name, one.step) for one in callback.records] == 2 * [("step", 1), ("step", 2), ("step", 3), ("val", 3)]
    assert callback.monitor.homogeneous is found
    assert len(load(tmp_path / "run")) == 8
    assert not model._forward_pre_hooks


def test_mixed_precision(tmp_path):
    model, callback = Net(), LightningMargins(every=1)
    _trainer(tmp_path, [callback], precision="bf16-mixed").fit(model, _loader(), _loader(seed=1))
    with torch.autocast("cpu", torch.bfloat16):
        by_hand = MarginMonitor(model).measure(_loader(seed=1), "val")
    assert_same(callback.records[-1], by_hand)
    exact = MarginMonitor(model).measure(_loader(seed=1), "val")
    assert exact.margin != by_hand.margin  # measured in the precision that is trained in


def test_a_bad_batch_is_a_warning_once_there_are_records(tmp_path):
    class Broken(Net):
        def training_step(self, batch, batch_idx):
            out = super().training_step(batch, batch_idx)
            return {**out, "logits": out["logits"] * (math.nan if self.trainer.global_step == self.at else 1)}

    model, callback = Broken(), LightningMargins(every=2)
    model.at = 2
    with pytest.warns(UserWarning, match="margins were not measured: step 3: 8 examples have NaN"):
        _trainer(tmp_path, [callback]).fit(model, _loader())
    assert [one.step for one in callback.records] == [1, 5]
    model = Broken()
    model.at = 0
    with pytest.raises(InputError, match="step 1: 8 examples have NaN"):
        _trainer(tmp_path, [LightningMargins(every=2)]).fit(model, _loader())


def test_records_are_kept_when_training_fails(tmp_path):
    class Failing(Net):
        def on_train_batch_end(self, *_):
            if self.trainer.global_step == 4:
                raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck"):
        _trainer(tmp_path, [LightningMargins(every=1, out=tmp_path / "run")]).fit(Failing(), _loader())
    assert load(tmp_path / "run")["step"].to_pylist() == [1, 2, 3, 4]


def test_nothing_to_measure_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"no margins were measured: .* give LightningMargins\(data=loader\)"):
        _trainer(tmp_path, [LightningMargins()], max_epochs=1).fit(Net(returns=False), _loader())
    with pytest.raises(InputError, match="every_n_epochs must be at least 1, not 0"):
        LightningMargins(every_n_epochs=0)


def test_batches_are_made_ready_as_for_validation_and_forward_is_used(tmp_path):
    class Scaled(Net):
        def on_after_batch_transfer(self, batch, dataloader_idx):
            return 3 * batch[0], batch[1]

    model, seen = Scaled(returns=False), []

    def forward(module, batch):
        seen.append(batch[0])
        return module.net(batch[0]), batch[1]

    callback = LightningMargins(forward=forward)
    _trainer(tmp_path, [callback], max_epochs=1).fit(model, _loader(), _loader(seed=1))
    x, y = _data(seed=1).tensors
    torch.testing.assert_close(torch.cat(seen[-3:]), 3 * x)
    assert_same(callback.records[-1], MarginMonitor(model).measure((3 * x, y), "val"))


# ---------------------------------------------------------------- other processes


def _python(code: str, folder: Path, **more: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run([sys.executable, script], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_monitor_imports_no_trainers(tmp_path):
    found = _python(
        """
        import sys
        import widemargin, widemargin.monitor
        heavy = ("lightning", "pytorch_lightning", "transformers", "tensorboard", "accelerate")
        print([name for name in heavy if name in sys.modules])
        for name in ("lightning", "pytorch_lightning", "transformers"):
            sys.modules[name] = None  # as if it were not installed
        for module in ("lightning", "huggingface"):
            try:
                __import__(f"widemargin.monitor.{module}")
            except widemargin.types.InputError as error:
                print(error)
        """,
        tmp_path,
    )
    assert found.splitlines() == [
        "[]",
        "neither lightning nor pytorch_lightning is installed; pip install 'widemargin[lightning]'",
        "transformers is not installed; pip install 'widemargin[transformers]'",
    ]


SCRIPT = """
    import warnings
    warnings.simplefilter("ignore")
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    import {package} as pl
    from widemargin.monitor import MarginMonitor
    from widemargin.monitor.lightning import LightningMargins

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 16, bias=False), nn.ReLU(), nn.Linear(16, 3, bias=False)).double()
        def forward(self, x):
            return self.net(x)
        def training_step(self, batch, batch_idx):
            logits = self(batch[0])
            return {{"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}}
        def validation_step(self, batch, batch_idx):
            pass
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if __name__ == "__main__":
        torch.manual_seed(1)
        x = torch.randn(48, 4, dtype=torch.float64)
        data = TensorDataset(x, (x @ torch.randn(4, 3, dtype=torch.float64)).argmax(1))
        model = Net()
        callback, other = LightningMargins(every=1), LightningMargins(DataLoader(data, batch_size=8))
        trainer = pl.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[callback, other], {options}
        )
        trainer.fit(model, DataLoader(data, batch_size=8), DataLoader(data, batch_size=8))
        records, others = callback.records, other.records
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        if trainer.global_rank == 0:
            by_hand = MarginMonitor(model).measure(DataLoader(data, batch_size=8))
            for one in (records[-1], others[-1], by_hand):
                print(one.n, f"{{one.margin:.12g}} {{one.psi:.12g}} {{one.norm:.12g}}", flush=True)
            print([(one.name, one.step, one.n) for one in records if one.name == "step"], flush=True)
            print([(one.name, one.step, one.n) for one in (records[-1], others[-1])], flush=True)
"""


@pytest.mark.long
def test_two_processes(tmp_path):
    """Each rank sees a half, of Lightning's loaders and of those given; the records are of the whole."""
    code = SCRIPT.format(package="pytorch_lightning", options='devices=2, strategy="ddp"')
    val, given, by_hand, steps, whole = _python(code, tmp_path).strip().splitlines()[-5:]
    assert val == by_hand
    assert given == by_hand
    assert steps == str([("step", 1, 16), ("step", 2, 16), ("step", 3, 16)])
    assert whole == str([("val", 3, 48), ("data", 3, 48)])


@pytest.mark.long
def test_the_other_package(tmp_path):
    """`lightning.pytorch` is the same source under another name: a copy of it, renamed, has classes of its own."""
    source = Path(pl.__file__).parent
    for path in source.rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            to = tmp_path / "lightning" / "pytorch" / path.relative_to(source)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes().replace(b"pytorch_lightning", b"lightning.pytorch"))
    (tmp_path / "lightning" / "__init__.py").write_text("")
    code = SCRIPT.format(package="lightning.pytorch", options="devices=1")
    code += '        print("pytorch_lightning" in sys.modules, isinstance(callback, pl.Callback))\n'
    val, given, by_hand, _, whole, which = _python(code, tmp_path).strip().splitlines()[-6:]
    assert val == given == by_hand
    assert whole == str([("val", 6, 48), ("data", 6, 48)])
    assert which == "False True"
