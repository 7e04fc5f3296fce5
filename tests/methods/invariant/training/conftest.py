import pytest

import training_scans
from siteless.methods.training import TrainingSet


@pytest.fixture(scope="session")
def training_set() -> TrainingSet:
    return training_scans.make_training_set()
