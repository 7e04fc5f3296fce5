"""Trains a little, as one of several processes, and writes the log: ``... OUT``."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from lessons import QUICK, lesson
from siteless.distributed import joined, rank
from siteless.methods.invariant.training import train

if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined("cpu"):
        trained = train(lesson(), replace(QUICK, updates=40, precision="float32"))
        if rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(trained.log))
