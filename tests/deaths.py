"""Functions that end their process, where other processes can import them."""

import os
import signal


def double_unless(deadly: int, item: int) -> int:
    """Double a number, but die of one."""
    if item == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item
