"""Certificates that earlier versions wrote are read into memory, and say there what they said in their files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from corpus import written_before

from widemargin import Certificate, Dataset, InputError, optima, verify
from widemargin.verify.__main__ import main

BEFORE = written_before()


@pytest.mark.parametrize(("payload", "X", "y"), [one[1:] for one in BEFORE], ids=[one[0] for one in BEFORE])
def test_certificates_written_before_are_read(payload, X, y, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(payload))
    cert, data = Certificate.load(path), Dataset(X, y)
    assert cert.verify(data).answer == verify.check(payload, X, y).answer
    assert cert.bounds() == (payload["lower"], payload["upper"]) and cert.atoms == payload["atoms"]
    try:
        values = cert.function(X, data)
    except InputError as error:
        assert "holds no function" in str(error)
        return
    assert len(values) == len(X) and np.isfinite(values).all()
    if cert.convention != "norm" and values.ndim == 1:
        np.testing.assert_allclose((y * values).min(), cert.lower, rtol=1e-3)
        assert (y * values).min() >= cert.lower * (1 - 1e-9)


@pytest.mark.parametrize("y", [[0.0, 1.0, 1.0, 0.0], [-1.0, 1.0, 1.0, -1.0], [0.5, 2.0, 1.0, 0.5]])
def test_targets_of_the_squared_loss_are_read_as_they_are(y, tmp_path, capsys):
    """Two numbers are targets or labels; the certificate's own hash says which, in .npz and .csv files alike."""
    X = np.array([[1.0, 0.5], [-1.0, 2.0], [0.25, -2.0], [3.0, 1.0]])
    cert = tmp_path / "c.json"
    optima.f1(Dataset(X, y), loss="squared", weight_decay=0.1, bias=True).save(cert)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    rows = [",".join(map(repr, map(float, [*row, target]))) for row, target in zip(X, y)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    np.savez(tmp_path / "words.npz", X=X, y=np.array(["low", "up", "up", "low"]))
    np.savez(tmp_path / "numbers.npz", X=X, y=np.array([3, 7, 7, 3]))
    for name in ("data.npz", "data.csv"):
        assert main([str(cert), str(tmp_path / name)]) == 0, name
    for name in ("words.npz", "numbers.npz"):
        assert main([str(cert), str(tmp_path / name)]) == (0 if -1.0 in y else 1), name
    capsys.readouterr()
