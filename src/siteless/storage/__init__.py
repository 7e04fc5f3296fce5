"""Write complete files atomically, and hash what they depend on."""

from siteless.storage._arrays import is_whole, load_arrays, map_arrays, save_arrays
from siteless.storage._keys import cache_key, size_and_time
from siteless.storage._staged import require_writable, staged, write_whole

__all__ = [
    "cache_key",
    "is_whole",
    "load_arrays",
    "map_arrays",
    "require_writable",
    "save_arrays",
    "size_and_time",
    "staged",
    "write_whole",
]
