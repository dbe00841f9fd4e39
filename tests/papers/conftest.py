"""Pictures of reproductions are drawn in full and written coarsely: most of the time of a tiny run would go into fonts."""

import pytest

from widemargin.papers import jobs


@pytest.fixture(autouse=True)
def coarse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.name != AS_WRITTEN:
        monkeypatch.setattr(jobs, "PICTURES", {"savefig.dpi": 60, "pdf.fonttype": 3})


AS_WRITTEN = "test_files_and_verdicts[cb-2a]"  # one is written as users get it
