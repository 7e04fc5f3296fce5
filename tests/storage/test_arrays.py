from pathlib import Path

import numpy as np
import pytest

from siteless.acquisition import Array
from siteless.storage import is_whole, load_arrays, map_arrays, save_arrays


@pytest.mark.parametrize("labels", [None, {}, {"key": "abc"}])
@pytest.mark.parametrize("arrays", [{}, {"a": np.arange(6.0).reshape(2, 3)}])
def test_what_is_stored_is_read_again_even_if_it_is_nothing(
    tmp_path: Path, arrays: dict[str, Array], labels: dict[str, str] | None
) -> None:
    path = tmp_path / "x.safetensors"
    save_arrays(path, arrays, labels)
    assert is_whole(path)
    stored, read_labels = map_arrays(path)
    assert read_labels == (labels or {})
    assert set(stored) == set(load_arrays(path)) == set(arrays)
    assert all(np.array_equal(stored[name], arrays[name]) for name in arrays)
