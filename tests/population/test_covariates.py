import numpy as np

from siteless.population import Covariate

AGES = [str(age) for age in range(20, 80, 2)]


def test_ages_of_many_people_may_act_along_a_curve() -> None:
    covariate = Covariate.of("age", AGES)
    columns = covariate.columns(AGES)
    assert columns.shape == (30, 2)
    np.testing.assert_allclose(columns.mean(axis=0), 0, atol=1e-9)
    ages = np.array([float(age) for age in AGES])
    beyond = covariate.columns(["100", "110", "120"])
    np.testing.assert_allclose(np.diff(beyond, 2, axis=0), 0, atol=1e-9)  # straight outside
    curve = np.square(ages - 50)
    fitted = np.column_stack([np.ones(30), columns])
    left = curve - fitted @ np.linalg.lstsq(fitted, curve)[0]
    assert left.std() < 0.3 * curve.std()  # a line explains nothing of it


def test_ages_of_few_people_act_along_a_line() -> None:
    assert Covariate.of("age", AGES[:8]).columns(AGES).shape == (30, 1)
