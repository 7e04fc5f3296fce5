import pytest

from siteless.simulation import Anatomy, Person, Scanner, make_anatomy, read_scanners


@pytest.fixture(scope="session")
def person() -> Person:
    return Person("01", age=45, sex="F", split="train", seed=(7, 1))


@pytest.fixture(scope="session")
def anatomy(person: Person) -> Anatomy:
    return make_anatomy(person, voxel_size=4.0)


@pytest.fixture(scope="session")
def scanners() -> dict[str, Scanner]:
    return read_scanners()
