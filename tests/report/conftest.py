"""A browser for the tests of pages that are opened in one."""

import pytest

from browsing import chrome


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = chrome(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()
