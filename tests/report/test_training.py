from pathlib import Path

import numpy as np
from PIL import Image

from siteless.report import draw_training


def test_a_log_becomes_a_picture(tmp_path: Path) -> None:
    terms = ("loss", "reconstruction", "projection", "prior", "marginal", "adversary")
    names = [f"{split}_{term}" for split in ("train", "val") for term in terms]
    log = [{"update": 20.0 * n} | dict.fromkeys(names, 1.0 / n) for n in range(1, 6)]
    draw_training(log, tmp_path / "losses.png")
    with Image.open(tmp_path / "losses.png") as picture:
        assert picture.size == (1320, 720)
        assert np.asarray(picture.convert("L")).std() > 5


def test_missing_terms_leave_no_empty_panels(tmp_path: Path) -> None:
    log = [{"update": 20.0 * n, "train_loss": 1.0 / n, "val_loss": 2.0 / n} for n in range(1, 6)]
    draw_training(log, tmp_path / "losses.png")
    with Image.open(tmp_path / "losses.png") as picture:
        assert picture.size == (1320, 360)
