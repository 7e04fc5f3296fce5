"""Trains a little, as one of several processes, and writes the log: ``... OUT``."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from siteless.distributed import joined, rank
from siteless.methods.invariant.training import train
from training_scans import QUICK, make_training_set

if __name__ == "__main__":
    torch.set_num_threads(1)
    with joined("cpu"):
        trained = train(make_training_set(), replace(QUICK, updates=40, precision="float32"))
        if rank() == 0:
            Path(sys.argv[1]).write_text(json.dumps(trained.log))
