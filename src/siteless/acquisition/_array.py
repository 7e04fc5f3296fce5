"""The array type used in annotations; docstrings give shape, type and unit."""

from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
