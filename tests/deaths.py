"""Functions that tell of or end their process, where other processes can import them."""

import os
import signal


def process_of(_item: int) -> int:
    """Return the number of the process that does an item."""
    return os.getpid()


def double_unless(deadly: int, item: int) -> int:
    """Double a number, but die of one."""
    if item == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item
