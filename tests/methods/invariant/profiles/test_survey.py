import numpy as np

from siteless.methods.invariant.profiles._survey import _LAGS, BLURS, Survey, fine_detail


def _survey_of(voxel_size: float, reach: float = 6.0) -> Survey:
    """Make a survey whose harmonics differ over a distance as an exponential covariance says."""
    sizes = np.full(3, voxel_size)
    differences = 1 - np.exp(-np.multiply.outer(sizes, _LAGS) / reach)
    nothing = np.zeros((0, 3))
    return Survey(
        site="a",
        person="1",
        position=nothing,
        count=np.zeros(0),
        share=np.zeros(0),
        energies=np.zeros((len(BLURS), 0, 5)),
        structure=np.stack([differences] * len(BLURS)),
        voxel_size=sizes,
    )


def test_fine_detail_does_not_depend_on_the_size_of_voxels() -> None:
    coarse, *finer = (
        fine_detail(_survey_of(size), near=2.5) for size in (2.5, 2.0, 1.5, 1.25, 1.0)
    )
    for detail in finer:
        np.testing.assert_allclose(detail, coarse, rtol=0.03)
