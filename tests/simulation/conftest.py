import pytest

from siteless.simulation import Person, make_anatomy, read_scanners


@pytest.fixture(scope="session")
def person():
    return Person("01", age=45, sex="F", split="train", seed=(7, 1))


@pytest.fixture(scope="session")
def anatomy(person):
    return make_anatomy(person, voxel_size=4.0)


@pytest.fixture(scope="session")
def scanners():
    return read_scanners()
