"""The callback of transformers' Trainer, against the real library: its records are those of a monitor used by hand."""

import json
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    EarlyStoppingCallback,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoConfig,
    OlmoForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from widemargin.monitor import MarginMonitor, load
from widemargin.monitor.huggingface import TrainerMargins
from widemargin.types import InputError

pytestmark = [pytest.mark.usefixtures("one_thread")]
WATCHED = ("margin", "psi", "norm", "error", "loss", "psi_normalized", "n")
FEW = {"margin", "psi", "margin_normalized", "psi_normalized", "norm", "error", "loss"}
VOCAB, LENGTH = 20, 7


class Rows(Dataset):
    """Token ids with labels of a kind: the class of a sequence, of its tokens, the tokens themselves."""

    def __init__(self, kind: str, n: int = 40, seed: int = 0, name: str = "labels"):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(1, VOCAB, (n, LENGTH), generator=g)
        labels = {
            "sequence": ids[:, 0] % 3,
            "tokens": torch.where(ids % 5 == 0, -100, ids % 4),
            "causal": ids,
            "real": ids[:, 0] / 10,
            "several": torch.stack([ids[:, 0] % 2, ids[:, 1] % 2], 1).float(),
        }[kind]
        self.rows = [
            {"input_ids": one, "attention_mask": torch.ones_like(one), name: label} for one, label in zip(ids, labels)
        ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k]


def _batch(rows: Dataset, count: int | None = None) -> dict[str, torch.Tensor]:
    picked = [rows[k] for k in range(count or len(rows))]
    return {key: torch.stack([one[key] for one in picked]) for key in picked[0]}


def _bert(kind=BertForSequenceClassification, **more):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(BertConfig(vocab_size=VOCAB, max_position_embeddings=16, **{"num_labels": 3, **more}, **sizes))


def _decoder(kind=LlamaForCausalLM, config=LlamaConfig):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return kind(config(vocab_size=VOCAB, num_key_value_heads=2, pad_token_id=0, **sizes))


def _args(tmp_path, **more) -> TrainingArguments:
    known = {
        "output_dir": str(tmp_path / "hf"),
        "max_steps": 6,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 4,
        "learning_rate": 1e-2,
        "logging_steps": 3,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(**{**known, **more})


def _steps(callback) -> list[tuple[str, int]]:
    return [(one.name, one.step) for one in callback.records]


def assert_same(record, other) -> None:
    for name in WATCHED:
        assert getattr(record, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9), name


def test_the_trainers_own_data_as_by_hand(tmp_path):
    model, callback, train, test = _bert(), TrainerMargins(), Rows("sequence", 80), Rows("sequence", 40, 1)
    args = _args(tmp_path, eval_strategy="steps", eval_steps=3)
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=test, callbacks=[callback])
    trainer.train()
    assert sorted(_steps(callback)) == [("eval", 3), ("eval", 6), ("train", 3), ("train", 6)]
    last = {one.name: one for one in callback.records}
    by_hand = MarginMonitor(model)
    assert_same(last["train"], by_hand.measure(_batch(train, 64)))  # 8 batches of 8
    assert_same(last["eval"], by_hand.measure(_batch(test, 32)))  # 8 batches of 4
    # From scratch, by torch's own cross-entropy.
    with torch.no_grad():
        model.eval()
        batch = _batch(test, 32)
        logits = model(batch["input_ids"], batch["attention_mask"]).logits.double()
    assert last["eval"].loss == pytest.approx(float(nn.functional.cross_entropy(logits, batch["labels"])), rel=1e-5)
    own = logits.gather(1, batch["labels"][:, None])[:, 0]
    hard = own - logits.scatter(1, batch["labels"][:, None], -math.inf).amax(1)
    assert last["eval"].margin == pytest.approx(float(hard.min()), rel=1e-5)


def test_log_history_has_them_once(tmp_path):
    callback = TrainerMargins()
    args = _args(tmp_path, eval_strategy="steps", eval_steps=3)
    trainer = Trainer(
        _bert(), args, train_dataset=Rows("sequence"), eval_dataset=Rows("sequence"), callbacks=[callback]
    )
    evaluations = []
    evaluate = trainer.evaluate
    trainer.evaluate = lambda *a, **k: evaluations.append(1) or evaluate(*a, **k)
    trainer.train()
    assert len(evaluations) == 2
    for name in ("train", "eval"):
        kept = [one for one in trainer.state.log_history if f"margin/{name}/psi" in one]
        assert [one["step"] for one in kept] == [3, 6]
        assert {key for one in kept for key in one if key.startswith(f"margin/{name}")} == {
            f"margin/{name}/{key}" for key in FEW
        }
        values = [one.psi for one in callback.records if one.name == name]
        assert [one[f"margin/{name}/psi"] for one in kept] == values
    json.dumps(trainer.state.log_history, allow_nan=False)
    assert "train_runtime" in trainer.state.log_history[-1]  # what others look for at the end is still there
    before = len(callback.records)
    trainer.evaluate()  # outside of training
    assert len(callback.records) == before


def test_attached_callbacks_report_everywhere(tmp_path):
    class Report(TrainerCallback):
        def __init__(self):
            self.seen = []

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen += [(state.global_step, set(logs))] if any(key.startswith("margin/") for key in logs) else []

    report = Report()
    trainer = Trainer(_bert(), _args(tmp_path), train_dataset=Rows("sequence"), callbacks=[report])
    callback = TrainerMargins().attach(trainer)
    trainer.train()
    assert _steps(callback) == [("train", 3), ("train", 6)]  # at logs: this trainer does not evaluate
    assert report.seen == [(step, {f"margin/train/{key}" for key in FEW} | {"epoch"}) for step in (3, 6)]
    assert [one["step"] for one in trainer.state.log_history if "margin/train/psi" in one] == [3, 6]


@pytest.mark.parametrize(
    "kind", [(LlamaForCausalLM, LlamaConfig), (OlmoForCausalLM, OlmoConfig)], ids=["llama", "olmo"]
)
def test_causal_models(tmp_path, kind):
    model, rows = _decoder(*kind), Rows("causal")
    callback = TrainerMargins(every=2)
    Trainer(model, _args(tmp_path), train_dataset=rows, callbacks=[callback]).train()
    assert _steps(callback) == [("train", 2), ("train", 4), ("train", 6)]
    record = callback.records[-1]
    batch = _batch(rows, 40)
    assert record.n == 40 * (LENGTH - 1)
    assert_same(record, MarginMonitor(model).measure(batch))
    with torch.no_grad():
        model.eval()
        loss = model(**batch).loss  # shifted by the model itself
    assert record.loss == pytest.approx(float(loss), rel=1e-5)
    assert "lm_head.weight" in callback.monitor.homogeneous.names


def test_tokens_and_their_padding(tmp_path):
    model, rows = _bert(BertForTokenClassification, num_labels=7), Rows("tokens")  # 7 tokens and 7 classes
    callback = TrainerMargins()
    Trainer(model, _args(tmp_path), train_dataset=rows, callbacks=[callback]).train()
    batch = _batch(rows)
    assert callback.records[-1].n == int((batch["labels"] != -100).sum()) < 40 * LENGTH
    with torch.no_grad():
        model.eval()
        assert callback.records[-1].loss == pytest.approx(float(model(**batch).loss), rel=1e-5)


def test_masked_models_are_measured_on_the_same_masks(tmp_path):
    """A collator that draws: kept batches, and training as without it."""

    def collate(rows):
        batch = {"input_ids": torch.stack([one["input_ids"] for one in rows])}
        masked = torch.rand(batch["input_ids"].shape) < 0.3
        return {
            "input_ids": batch["input_ids"].masked_fill(masked, 0),
            "labels": batch["input_ids"].masked_fill(~masked, -100),
        }

    def train(callbacks):
        model = _bert(BertForMaskedLM)
        trainer = Trainer(
            model, _args(tmp_path), train_dataset=Rows("causal"), data_collator=collate, callbacks=callbacks
        )
        trainer.train()
        return model.state_dict()

    callback = TrainerMargins(every=1)
    plain, watched = train([]), train([callback])
    assert len({one.n for one in callback.records}) == 1
    assert len(callback.records) == 6
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


def test_encoder_decoders_get_their_labels(tmp_path):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    model, rows = T5ForConditionalGeneration(config), Rows("causal", 16)
    callback = TrainerMargins()
    Trainer(model, _args(tmp_path, max_steps=2), train_dataset=rows, callbacks=[callback]).train()
    with torch.no_grad():
        model.eval()
        assert callback.records[-1].loss == pytest.approx(float(model(**_batch(rows)).loss), rel=1e-5)
    assert callback.records[-1].n == 16 * LENGTH


def test_lists_of_rows(tmp_path):
    model, callback, rows = _bert(), TrainerMargins(), Rows("sequence")
    Trainer(model, _args(tmp_path), train_dataset=rows.rows, callbacks=[callback]).train()
    assert_same(callback.records[-1], MarginMonitor(model).measure(_batch(rows)))


def test_given_data_gradient_accumulation_and_label_names(tmp_path):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _bert()

        def forward(self, input_ids, attention_mask=None, kind=None):
            out = self.inner(input_ids, attention_mask, labels=kind)
            return {"loss": out.loss, "logits": out.logits} if kind is not None else {"logits": out.logits}

    model, test = Renamed(), Rows("sequence", 37, 1, "kind")
    given = {"test": test, "loader": DataLoader(test, batch_size=5)}
    callback = TrainerMargins(given, every=2, out=tmp_path / "run", everything=True)
    args = _args(tmp_path, gradient_accumulation_steps=2, label_names=["kind"])
    trainer = Trainer(model, args, train_dataset=Rows("sequence", 80, 0, "kind"), callbacks=[callback])
    trainer.train()
    assert _steps(callback) == [(name, step) for step in (2, 4, 6) for name in ("test", "loader")]
    batch = _batch(test)
    by_hand = MarginMonitor(model, forward=lambda m, b: (m(b["input_ids"])["logits"], b["kind"])).measure(batch)
    assert by_hand.n == 37
    for record in callback.records[-2:]:
        assert_same(record, by_hand)
    assert load(tmp_path / "run")["step"].to_pylist() == [2, 2, 4, 4, 6, 6]
    assert any("margin/test/margin_q50" in one for one in trainer.state.log_history)


def test_resumed_and_trained_again(tmp_path):
    def make(steps):
        callback = TrainerMargins(every=2, out=tmp_path / "run")
        args = _args(tmp_path, max_steps=steps, save_strategy="steps", save_steps=4)
        return callback, Trainer(_bert(), args, train_dataset=Rows("sequence", 80), callbacks=[callback])

    callback, trainer = make(4)
    trainer.train()
    callback, trainer = make(8)
    trainer.train(resume_from_checkpoint=True)
    assert _steps(callback) == [("train", 6), ("train", 8)]
    assert [one["step"] for one in trainer.state.log_history if "margin/train/psi" in one] == [2, 4, 6, 8]
    assert load(tmp_path / "run")["step"].to_pylist() == [2, 4, 6, 8]
    assert_same(callback.records[-1], MarginMonitor(trainer.model).measure(_batch(Rows("sequence", 80), 64)))
    trainer.train()
    assert [step for _, step in _steps(callback)] == [6, 8, 2, 4, 6, 8]


def test_best_model_by_margin_and_early_stopping(tmp_path):
    name = "margin/eval/psi_normalized"
    args = _args(
        tmp_path, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2, load_best_model_at_end=True,
        metric_for_best_model=name, greater_is_better=True, learning_rate=3e-2,
    )  # fmt: skip
    callback = TrainerMargins()
    callbacks = [callback, EarlyStoppingCallback(early_stopping_patience=20)]
    trainer = Trainer(
        _bert(), args, train_dataset=Rows("sequence"), eval_dataset=Rows("sequence", 32, 1), callbacks=callbacks
    )
    trainer.train()
    values = [one.psi_normalized for one in callback.records if one.name == "eval"]
    assert len(values) == 3
    assert trainer.state.best_metric == max(values)


def test_mixed_precision_and_a_stream(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(Rows("sequence", 80).rows)

    model, callback = _bert(), TrainerMargins(batches=3)
    Trainer(model, _args(tmp_path, bf16=True), train_dataset=Stream(), callbacks=[callback]).train()
    batch = _batch(Rows("sequence", 80), 24)
    assert callback.records[-1].n == 24
    assert callback.monitor.homogeneous.names == ("classifier.weight", "classifier.bias")
    by_hand = MarginMonitor(model, callback.monitor.homogeneous).measure(
        batch
    )  # accelerate has wrapped its forward pass
    assert_same(callback.records[-1], by_hand)
    exact = MarginMonitor(_bert(), callback.monitor.homogeneous)
    exact.model.load_state_dict(model.state_dict())
    assert exact.measure(batch).margin != by_hand.margin  # measured in the precision that is trained in


def test_bad_input_is_a_sentence(tmp_path):
    def train(model, rows, **options):
        args = _args(tmp_path, max_steps=2, logging_steps=1)
        Trainer(model, args, train_dataset=rows, callbacks=[TrainerMargins(**options)]).train()

    with pytest.raises(InputError, match="the model has one label, which is regression"):
        train(_bert(num_labels=1), Rows("real"))
    several = _bert(num_labels=2, problem_type="multi_label_classification")
    with pytest.raises(InputError, match="give loss='bce'"):
        train(several, Rows("several"))
    with pytest.raises(InputError, match="forward must return a pair of tensors"):
        train(_bert(), Rows("sequence"), forward=lambda model, batch: model(**batch).logits)
    with pytest.raises(InputError, match=r"the batch has no labels or label.*only input_ids, attention_mask, other"):
        train(_bert(), Rows("sequence"), data=DataLoader(Rows("sequence", name="other")))
    with pytest.raises(InputError, match="every must be at least 1"):
        TrainerMargins(every=0)


def test_several_labels_are_decisions(tmp_path):
    model, rows = _bert(num_labels=2, problem_type="multi_label_classification"), Rows("several")
    callback = TrainerMargins(loss="bce")
    Trainer(model, _args(tmp_path), train_dataset=rows, callbacks=[callback]).train()
    with torch.no_grad():
        model.eval()
        assert callback.records[-1].loss == pytest.approx(float(model(**_batch(rows)).loss), rel=1e-5)
    assert callback.records[-1].n == 80


def test_a_bad_batch_is_a_warning_once_there_are_records(tmp_path):
    class Diverging(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 4:
                model.classifier.weight.data.fill_(math.nan)

    callback = TrainerMargins(every=2)
    callbacks = [callback, Diverging()]
    trainer = Trainer(_bert(), _args(tmp_path, max_steps=5), train_dataset=Rows("sequence"), callbacks=callbacks)
    with pytest.warns(UserWarning, match="margins were not measured: train: 40 examples have NaN"):
        trainer.train()
    assert _steps(callback) == [("train", 2), ("train", 4)]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "times"), [(0.1, 1), (0.0, 0)])
def test_label_smoothing_is_another_loss(factor: float, times: int, tmp_path):
    """Told once, in training of several steps, and the margins are measured all the same."""
    callback = TrainerMargins(every=1)
    args = _args(tmp_path, max_steps=2, label_smoothing_factor=factor)
    trainer = Trainer(_bert(), args, train_dataset=Rows("sequence"), callbacks=[callback])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.train()
    said = [str(warning.message) for warning in caught if "training minimises another loss" in str(warning.message)]
    assert len(said) == times and all("label_smoothing_factor=0.1" in text for text in said)
    assert _steps(callback) == [("train", 1), ("train", 2)]
