import pytest

import lessons


@pytest.fixture(scope="session")
def lesson():
    return lessons.lesson()
