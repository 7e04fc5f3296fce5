"""Functions that report or end their process, where other processes can import them."""

import os
import signal


def process_of(_item: int) -> int:
    """Return the number of the process that does an item."""
    return os.getpid()


def double_or_die(fatal: int, item: int) -> int:
    """Double a number, but let one number kill the process."""
    if item == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item
