"""Margins in the Trainer of transformers: one callback, on a small OLMo-style model made from its configuration class.

    python examples/monitor_huggingface.py

The model learns to count: each token is the one before plus a step that the first two tokens show. Nothing is downloaded.
Expected: the margins are in the trainer's log history, normalised by the head (OLMo's last norm has no gain). The training error
reaches 0 and psi/|w| goes on rising; it is positive once the losses of all 384 tokens sum to less than ln 2. About 15 seconds.
Needs: pip install 'widemargin[transformers]'
"""

import tempfile

import torch
from transformers import OlmoConfig, OlmoForCausalLM, Trainer, TrainingArguments

from widemargin.monitor.huggingface import TrainerMargins

MODULUS, LENGTH = 11, 6
torch.manual_seed(0)
start, by = torch.meshgrid(torch.arange(MODULUS), torch.arange(MODULUS), indexing="ij")
ids = (start.reshape(-1, 1) + by.reshape(-1, 1) * torch.arange(LENGTH)) % MODULUS  # (121, LENGTH)
labels = ids.clone()
labels[:, :2] = -100  # the first two tokens cannot be foretold
rows = [{"input_ids": one, "labels": label} for one, label in zip(ids, labels)]
rows = [rows[k] for k in torch.randperm(len(rows)).tolist()]

config = OlmoConfig(
    vocab_size=MODULUS, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, pad_token_id=None,
    bos_token_id=None, eos_token_id=None, tie_word_embeddings=False,
)  # fmt: skip
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        folder, max_steps=300, per_device_train_batch_size=32, learning_rate=5e-3, eval_strategy="steps", eval_steps=50,
        logging_steps=50, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False,
        log_level="error",
    )  # fmt: skip
    margins = TrainerMargins(out=f"{folder}/run")
    model = OlmoForCausalLM(config)
    trainer = Trainer(model, args, train_dataset=rows[:96], eval_dataset=rows[96:], callbacks=[margins])
    trainer.train()

print(margins.monitor.homogeneous.summary)
for entry in trainer.state.log_history:
    for name in ("train", "eval"):
        if f"margin/{name}/psi" in entry:
            error, margin = (entry[f"margin/{name}/{key}"] for key in ("error", "psi_normalized"))
            print(f"step {entry['step']}, {name}: error {error:.3f}, psi/|w|^L {margin:+.4f}")
