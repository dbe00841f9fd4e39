"""Certificates that earlier versions wrote are read into memory, and say there what they said in their files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from corpus import written_before

from widemargin import Certificate, Dataset, InputError, verify

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
