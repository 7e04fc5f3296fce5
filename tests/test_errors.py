import pickle

from siteless.errors import MaskError


def test_errors_travel_between_processes_whole() -> None:
    error = MaskError("empty", remedy="make another", path="mask.nii.gz")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is MaskError
    assert str(again) == "mask.nii.gz: empty; make another"
