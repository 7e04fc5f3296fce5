"""`siteless harmonize`."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, running, selection_of
from siteless.cli._report import report_at_end
from siteless.errors import DatasetError

if TYPE_CHECKING:
    from siteless.pipelines import Gradients, HarmonizeReport

_HELP = """\
render scans as a site

Render scans as another site would show them, at their own b-vectors or others, and write them as a
BIDS derivative, with maps of how uncertain the rendering is, how much it has changed, and what is
unlike the scans that the model was learned from. Nothing is fitted again. What an earlier run has
written with the same model and settings is kept; a scan that fails is named at the end, and the
others are done. A model of the method combat gives maps (FA, MD, ...) instead of scans.

examples:
  siteless harmonize my_study harmonized --model my_study.safetensors --to berlin
  siteless harmonize my_study harmonized --model my_study.safetensors --to average
  siteless harmonize my_study harmonized --model my_study.safetensors --to berlin --site leeds
  siteless harmonize my_study harmonized --model my_study.safetensors --to berlin \\
      --gradients target --dask tcp://node1:8786
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "harmonize", run, _HELP, goes_on=True)
    parser.add_dataset()
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the derivative dataset")
    parser.add_model()
    parser.add_argument(
        "--to",
        required=True,
        metavar="SITE",
        help="site to render scans as, or average: the mean of all sites of the model",
    )
    parser.add_argument(
        "--gradients",
        nargs="+",
        default=["own"],
        metavar="WHICH",
        help="b-vectors to render at: own (default), target (the target site's protocol), or a "
        ".bval and a .bvec file",
    )
    parser.add_argument(
        "--outside",
        choices=("scaled", "unchanged"),
        default="scaled",
        help="what happens to voxels that the model has not learned (default: scaled as the "
        "rendered voxels near by)",
    )
    parser.add_argument("--force", action="store_true", help="render again what is there already")
    parser.add_nprocs()
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="work on a cluster: the address of a Dask scheduler, or the file that has it",
    )
    parser.add_no_report()


def run(options: argparse.Namespace) -> int:
    """Harmonize and return the exit code."""
    from siteless.cli._console import say
    from siteless.pipelines import RenderingOptions, harmonize_dataset

    with running(options) as work:
        report = harmonize_dataset(
            selection_of(options),
            options.out,
            options.model,
            options.to,
            rendering=RenderingOptions(_gradients(options.gradients), options.outside),
            force=options.force,
            run=work,
        )
    _show(report, options.to, options.out)
    if (report.written or report.skipped) and not options.no_report:
        if options.dask or options.participant_label:  # other jobs may render the same dataset
            words = ["siteless", "report", options.dataset, "--harmonized", options.out]
            words += ["--model", options.model, "--out", options.out / "report"]
            say(f"for a report of all scans: {shlex.join(map(str, words))}")
        else:
            report_at_end(options, [options.out], model=options.model)
    return 1 if report.errors else 0


def _gradients(words: list[str]) -> Gradients:
    match words:
        case ["own" | "target" as which]:
            return which
        case [bval, bvec] if not bval.endswith(".bvec"):
            return Path(bval), Path(bvec)
    raise DatasetError(
        f"--gradients is own, target, or a .bval and a .bvec file; found {' '.join(words)}"
    )


def _show(report: HarmonizeReport, to: str, out: Path) -> None:
    """Print the outcome of scans."""
    from siteless.acquisition import show_bs
    from siteless.cli._console import count, say, warn

    for image, part in report.unfamiliar.items():
        mask = image.name.replace("desc-harmonized_dwi", "desc-unfamiliar_mask")
        warn(
            f"warning: {image}: {100 * part:.0f} % of the rendered voxels are unlike the training "
            f"scans of their site (expected 0.1 %); look at {mask}"
        )
    for bs, images in Counter(report.interpolated.values()).items():
        warn(
            f"note: {count(images, 'scan')} had no {show_bs(bs)}: the signal there is "
            "interpolated between shells, as the sidecars say (InterpolatedShells)"
        )
    for line in _error_lines(report):
        warn(line)
    others = {
        "there already": report.skipped,
        "without shells left out": report.left_out,
        "failed": report.errors,
    }
    parts = [f"{len(scans)} {what}" for what, scans in others.items() if scans]
    rendered = f"{count(len(report.written), 'scan')} rendered as {to}"
    say(f"{', '.join([rendered, *parts])}: {out}")


def _error_lines(report: HarmonizeReport) -> list[str]:
    """Return the errors of scans, or a single line if all failed for the same reason."""
    reasons = {(error.problem, error.remedy) for error in report.errors}
    if len(reasons) == 1 and len(report.errors) > 1 and not (report.written or report.skipped):
        return [f"{report.errors[0]} (and so for all {len(report.errors)} scans)"]
    return [str(error) for error in report.errors]
