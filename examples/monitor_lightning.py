"""Margins in Lightning: one callback, on the digits that ship with scikit-learn.

    python examples/monitor_lightning.py

Expected: the training error reaches 0, and psi/|w|^3, the normalised smooth margin, is positive from then on. About 15 seconds.
Needs: pip install 'widemargin[lightning]'
"""

import logging
import tempfile
import warnings

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from widemargin.monitor.lightning import LightningMargins

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="pytorch_lightning")


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear(a, b, bias=False) for a, b in ((64, 128), (128, 128), (128, 10))]
        self.net = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        logits = self(batch[0])
        # Logits and targets are all the callback needs to follow the training batches too.
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "logits": logits, "targets": batch[1]}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
X = torch.tensor(X / 16, dtype=torch.float32)
data = TensorDataset(X, torch.tensor(y))
train, test = torch.utils.data.random_split(data, [1297, 500])

probes = {"train": DataLoader(train, batch_size=512), "test": DataLoader(test, batch_size=512)}
with tempfile.TemporaryDirectory() as folder:
    margins = LightningMargins(probes, every_n_epochs=4, out=f"{folder}/run")
    trainer = pl.Trainer(
        max_epochs=24, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[margins],
    )  # fmt: skip
    trainer.fit(Digits(), DataLoader(train, batch_size=64, shuffle=True))

print(margins.monitor.homogeneous.summary)
for record in margins.records:
    if record.whole:
        print(record)
