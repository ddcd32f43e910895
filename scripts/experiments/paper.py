"""Repeat the tables and figures of JMLR 13 (2012), section 5, for your own data.

    . scripts/environment
    python -m scripts.experiments.paper table2 TRAIN [TEST] [options of scripts.compare]

Commands for one data set, which is svmlight text, plain or compressed (without TEST every fifth row is held out):

    table2                seconds to within 1 % of the least J: smoothing against cutting planes
    figure_objective      figures 2 to 26, upper halves: J against seconds, and its distance from the least J known
    figure_test_measure   figures 2 to 26, lower halves: the test measure against seconds
    figure_c_mu           figures 27 to 29: LMVM with c_mu 10, 100, 1000 and the adaptive width, at lambda = 1e-6
    figure_agm            figures 30 to 32: LMVM against accelerated gradient, at lambda = 1e-6

Each of them is `scripts.compare` with fixed options; you may add others. Commands with the same output folder share
their runs, and a command that was killed continues where it was. The paper's SMS is the solver lmvm with c_mu 10. The
gap to prove is 0.1 % of J. So the least J known is nearly the minimum, and "within 1 % of the least J known" is nearly
the same as "within 1 % of the minimum".

Commands for several data sets, with options of their own (see `paper evaluations --help`):

    evaluations           evaluations to 1 % and 0.1 % of the least J and to a proved gap, the paper's setting and ours
    published             published cross-validated and test measures compared with those found here
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.experiments import evaluations, published
from scripts.experiments.common import (
    CONTRADICTION,
    add_ranks,
    check_options_of_compare,
    compare,
    existing_file,
    shard_pair,
)

COMPARISONS = {
    "table2": (["--c-mu", "adaptive", "10"], "table.*"),
    "figure_objective": ([], "figures/[os]*"),
    "figure_test_measure": ([], "figures/test_*"),
    "figure_c_mu": (
        ["--lambdas", "1e-6", "--solvers", "lmvm", "--c-mu", "adaptive", "10", "100", "1000"],
        "figures/c_mu_*",
    ),
    "figure_agm": (["--lambdas", "1e-6", "--solvers", "lmvm", "agm", "--c-mu", "adaptive", "10"], "figures/agm_*"),
}
"""For each command: options of `scripts.compare`, and a pattern for the files that the command makes and names."""
OTHERS = {"evaluations": evaluations, "published": published}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMPARISONS:
        command = commands.add_parser(name, help="see above")
        command.add_argument("train", type=existing_file, metavar="TRAIN", help="svmlight text, plain or compressed")
        about = "the same (without it every fifth row is held out)"
        command.add_argument("test", type=existing_file, nargs="?", metavar="TEST", help=about)
        about = "folder for shards and runs (results/NAME, with the name of TRAIN)"
        command.add_argument("--output", type=Path, metavar="FOLDER", help=about)
        add_ranks(command)
    for name, module in OTHERS.items():
        about = module.__doc__ or ""
        formatter = argparse.RawDescriptionHelpFormatter
        command = commands.add_parser(name, help="see above", description=about, formatter_class=formatter)
        module.add_arguments(command)
    args, more = parser.parse_known_args()
    if args.command in COMPARISONS:
        run_comparison(args, more)
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    else:
        OTHERS[args.command].run(args)


def run_comparison(args: argparse.Namespace, more: list[str]) -> None:
    """Run `scripts.compare` on one data set, name the files that the command is about, and end the program."""
    options, files = COMPARISONS[args.command]
    options = [*options, "--relative", "0.001", *more]
    check_options_of_compare(options)
    output = args.output or Path("results") / args.train.name.split(".")[0]
    train, test = shard_pair(args.train, args.test, output / "data", args.ranks)
    agree = compare(train, test, output / "comparison", options, args.ranks)
    print("\n" + "\n".join(map(str, sorted((output / "comparison").glob(files)))))
    sys.exit(0 if agree else CONTRADICTION)


if __name__ == "__main__":
    main()
