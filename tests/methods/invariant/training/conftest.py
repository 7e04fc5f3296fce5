import pytest

import lessons
from siteless.methods.training import TrainingSet


@pytest.fixture(scope="session")
def lesson() -> TrainingSet:
    return lessons.lesson()
