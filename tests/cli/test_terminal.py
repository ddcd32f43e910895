"""What people see on a terminal: lines and tables that fit it, progress, warnings at the end, names of options."""

from __future__ import annotations

import io
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from distsms import cli
from distsms.base import formatting, jit, program
from distsms.base.measures import HEAD, WHOLE
from distsms.cli import evaluate, info, main, progress, terminal
from distsms.metrics.confidence import Interval
from distsms.models import evaluation as evaluate_module
from distsms.models.model import Model
from distsms.parallel.mpi import MPICommunicator
from distsms.workflow import baseline_text, path_result
from distsms.workflow import evaluate as judging
from distsms.workflow.choice import Point
from distsms.workflow.method_results import BEST, MethodResult
from scripts.compare import tables

pytestmark = pytest.mark.serial

COMMANDS = cli.COMMANDS
LONG = "/scratch/a-user-of-a-cluster/experiments/2026-11-22/models/the-model-that-was-trained-last.h5"
NUMBERS = [0.123456789, 1e-300, -1e-12, 12345678.9, 1e300]


@pytest.fixture(params=[80, 120])
def columns(request, monkeypatch):
    """The width of the terminal."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def assert_fits(text, columns):
    assert text and max(map(len, text.splitlines())) <= columns, text


def points():
    """A path's points, whose numbers are as long as they come."""
    for fold, (k, lam) in itertools.product(range(3), enumerate([1e10, 0.123457, 1e-300])):
        vacuous = {"status": "max-evaluations", "J": NUMBERS[k], "gap": NUMBERS[k], "evaluations": 10**9}
        values = {"rocarea": 0.5 + 1e-9 * k, "prbep": 1e-300}
        yield Point(lam, fold, {**vacuous, "vacuous": True}, 1e9, values, values if fold else None)


def usage(rank):
    phases = ("load", "broadcast", "margins X w", "loss", "gradient X'c", "reduce", "certificate", "threshold", "test")
    moved = dict.fromkeys(phases, 2**50 + rank)
    return {
        "seconds": dict.fromkeys(phases, 123456.789 + rank),
        "sent": moved,
        "received": moved,
        **dict.fromkeys(("bytes_sent", "bytes_received", "bytes_read", "peak_memory"), 2**50 + rank),
    }


def models():
    for k, value in enumerate(NUMBERS):
        measured = {"rocarea": value, "prbep": value}
        yield {
            **{"model": LONG.replace("last", str(k)), "measure": "precision@1000000000", "status": "max-evaluations"},
            **{"lambda": value, "J": value, "J_at_zero": 1.0, "gap": value, "evaluations": 10**9, "seconds": 1e9},
            **{"training": measured, "test": measured, "ranks": 100_000, "usage": usage(0)},
        }


def methods():
    interval = Interval(0.987654, 0.1, 0.123456, 1.0, "DeLong", p=0.5)
    both = dict.fromkeys(("rocarea", "prbep"), interval)
    for name in ("distsms", "logistic-balanced", "trees", BEST):
        yield MethodResult(name, [1e-7] * 5, True, 1e9, "", both, {} if name == "distsms" else both)


def test_tables_fit(columns):
    results = list(methods())
    assert_fits(
        formatting.format_table(
            *path_result.points_table(path_result.PathResult(list(points()), "rocarea", "best", {}, None, stopped=True))
        ),
        columns,
    )
    assert_fits(baseline_text.table(results, "rocarea"), columns)
    assert_fits(info._results(list(models())), columns)
    assert_fits(info._usages(list(models())), columns)
    header = ["measure", "lambda", "test measure [%]", "least J, proved within", "bmrm-linesearch"]
    cell = "not reached: --max-evaluations, 123456.78 s (1000000000)"
    assert_fits(
        tables.aligned(header, [["rocarea", "1e-300, vacuous", "100.00", "0.123456, 1e-05 %", cell]] * 4), columns
    )
    for ranks in (1, 2, 6, 7, 1000):
        used = [usage(rank) for rank in range(ranks)]
        assert_fits(progress.usage_table(used), columns)
        assert_fits(progress.bytes_table(used, ("broadcast", "loss", "reduce"), 1), columns)
        assert_fits(formatting.wrap(progress.usage_line(used), columns), columns)
    for sentence in baseline_text.sentences(results, "rocarea"):
        assert_fits(formatting.wrap(sentence, columns), columns)


def test_tables_lose_nothing(columns):
    """Whatever is folded or printed below, every cell is there, and each row begins with its name."""
    header = [f"a column of number {k}" for k in range(12)]
    rows = [[f"row {i}", *[f"{100 * i + k:.6f}" for k in range(1, 12)]] for i in range(1, 4)]
    told = formatting.format_table(header, rows)
    assert_fits(told, columns)
    assert set(told.split()) >= {word for row in rows for cell in row for word in cell.split()}
    assert told.count("row 1") == told.count("row 3") > 1
    one = formatting.format_table(["name", "remark"], [[LONG, "word " * 40]])
    assert_fits(one, columns)
    assert one.count("word") == 40
    assert formatting.format_table(["a", "b"], [["x", 1.5]]) == "a    b\n-  ---\nx  1.5"


def test_comparisons_of_models_fit(columns, capsys):
    interval = Interval(0.5, 0.1, 0.4, 0.6, "binomial and bootstrap", p=1e-300)
    both = dict.fromkeys(("rocarea", "prbep", *WHOLE, *HEAD), interval)
    point = {"threshold": 1 / 3, "tp": 10**8, "fp": 10**8, "precision": 0.5, "recall": 1.0, "fpr": 0.1}
    found = {
        "n": 10**9,
        "n_pos": 10**8,
        "n_neg": 9 * 10**8,
        "training_rows": 0.5,
        **dict.fromkeys((*WHOLE, *HEAD), 0.5),
        "at": {"top=1%": point},
    }
    made = Model(np.zeros(1), {"measure": "rocarea"})
    each = [evaluate_module.ModelEvaluation(f"{k}{LONG}", made, None, found, [], both) for k in range(3)]
    pairs = [evaluate_module.ModelComparison("a.h5", "b.h5", both)]
    rows = evaluate_module.EvaluatedRows(np.zeros(0, np.int64))
    evaluated = judging.Evaluated("data/test", rows, each, pairs, 0.95, judging._warnings(each), [])
    evaluate._print_several(evaluated, terminal.Speaker(True))
    assert_fits(capsys.readouterr().out, columns)


def test_help_fits(columns, capsys):
    for command in [], *([command] for command in COMMANDS):
        with pytest.raises(SystemExit):
            cli.parse([*command, "--help"])
        assert_fits(capsys.readouterr().out, columns)


OLD_NAMES = [
    ("report m --on d --out p", "report m --test d --output p"),
    ("evaluate a b --on d", "evaluate a b --test d"),
    ("shard a b --n-features 7", "shard a --output b --columns 7"),
    ("synth dense b", "synth dense --output b"),
    ("path d --lambda 1:1e-2", "path d --lambdas 1:1e-2"),
    ("baseline d --lambda 1 2", "baseline d --lambdas 1 2"),
]


@pytest.mark.parametrize("old, new", OLD_NAMES)
def test_old_names_of_options_work(old, new, capsys):
    other = {"folder": None, "check": None, "signals": None}
    first, second = ({**vars(cli.parse(words.split())), **other} for words in (old, new))
    assert first == second
    with pytest.raises(SystemExit):
        cli.parse([old.split()[0], "--help"])
    shown = capsys.readouterr().out
    hidden = set(old.split()) - set(new.split())
    assert not [word for word in hidden if word.startswith("--") and f" {word} " in shown]


def test_the_folder_is_the_last_word_or_an_option(capsys):
    assert cli.parse(["shard", "a", "b", "--output", "c"]).input == ["a", "b"]
    assert cli.parse(["shard", "a", "--quiet", "b"]).output == "b"
    assert cli.parse(["features", "a", "--output", "b"]).output == "b"
    for words in ("shard a", "synth dense", "synth dense b --output c", "features a b --output c"):
        with pytest.raises(SystemExit):
            cli.parse(words.split())
    assert capsys.readouterr().err.count("OUTDIR is given twice: b and --output c") == 2


def test_json_takes_no_file(capsys):
    for words in ["evaluate", "m.h5", "d", "--json", "x.json"], ["info", "--json", "x.json"]:
        with pytest.raises(SystemExit):
            cli.parse(words)
        assert "prints to standard output: --json > x.json" in " ".join(capsys.readouterr().err.split())
    assert cli.parse(["evaluate", "m.h5", "--json", "d"]).json


def test_the_usage_is_printed_by_the_first_rank(monkeypatch, capsys):
    """The others wait until the launcher ends them, and print it only if their command line alone is wrong."""
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    for rank, seconds in ("0", []), ("?", []), ("1", [cli.FIRST_SECONDS]):
        monkeypatch.setattr(cli.processes, "rank_of", lambda pid, rank=rank: rank)
        with pytest.raises(SystemExit):
            cli.parse(["predict", "--nosuch"])
        assert waited == seconds and "usage" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_warnings_stand_at_the_end_once(capsys):
    say = terminal.Speaker(True)
    for _ in range(2):
        say("data      rows\n  warning   there is little to see\n  model     m.h5")
    say("warning   there is more")
    say.close()
    say.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        *["data      rows", "  model     m.h5"] * 2,
        "",
        "warning   there is little to see",
        "warning   there is more",
    ]
    quiet = terminal.Speaker(False)
    quiet("x\nwarning   y")
    quiet.close()
    assert capsys.readouterr().out == ""


def test_names_of_columns_do_nothing_to_the_terminal_also_with_quiet(tmp_path, capsys):
    """They come from files of others, and warnings on a model name them."""
    positive = np.random.default_rng(0).random(400) < 0.3
    rows = [f"{y:d},{5 * y + k % 5},{7 * k % 11}" for k, y in enumerate(positive)]
    (tmp_path / "t.csv").write_text("\n".join(["y,re\x1b[31mfund,x", *rows]) + "\n")
    words = ["--label", "y", "--plain", "--lambda", "0.01", "--solver", "lbfgs", "--no-report", "--quiet"]
    assert main.main(["train", str(tmp_path / "t.csv"), *words, "--output", str(tmp_path / "m.h5")]) == 0
    said = capsys.readouterr().err
    assert said.startswith("distsms train: warning: Column re\\x1b[31mfund alone ranks") and "\x1b" not in said


def test_colours_are_for_terminals_alone(monkeypatch):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert terminal.paint("x", "yellow", Terminal()) == "\x1b[1;33mx\x1b[0m"
    assert terminal.paint("x", "yellow", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("x", "red", Terminal()) == "x"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")  # a launcher's terminal may be a file
    assert terminal.paint("x", "red", Terminal()) == "x"


@pytest.fixture
def clock(monkeypatch):
    """The clock of the progress, which a test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_progress_on_a_terminal_is_one_line(clock, columns):
    stream = Terminal()
    show = progress.Progress("writing", "shards", stream, live=True)
    for done in range(101):
        clock[0] = 1.8 * done
        show(done, 100, "a remark " * 30)
    show.close()
    first, *lines, last = stream.getvalue().split("\r")[1:]
    assert "\n" not in stream.getvalue() and last == "" and set(lines[-1]) == {" "}
    assert_fits("\n".join([first, *lines]), columns - 1)
    assert any(line.startswith("writing  50 %  50 of 100 shards, 1 min 30 s, about 1 min 30 s left") for line in lines)


def test_progress_in_a_log_is_a_line_now_and_then(clock):
    stream = io.StringIO()
    show = progress.Progress("scoring", "rows", stream)
    for done in range(1, 10**4):
        clock[0] = 3.6 * done  # ten hours
        show(done * 10**5, 10**9)
    show.close()
    lines = stream.getvalue().splitlines()
    assert 20 < len(lines) < 200 and "\r" not in stream.getvalue()
    assert lines[0] == "scoring  0 %  300,000 of 1,000,000,000 rows, 11 s, about 9 h 59 min left"
    stream, clock[0] = io.StringIO(), 0.0
    again = progress.Progress("training", "models", stream, earlier=30)
    clock[0] = 60.0
    again(36, 42, "lambda 1")  # six in a minute
    assert stream.getvalue() == "training  86 %  36 of 42 models, 1 min, about 1 min left  lambda 1\n"
    nothing = progress.Progress("scoring", "rows", None)
    nothing(1, 2)
    nothing.close()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "seconds, speaks, said", [(0.9, True, ""), (2.4, True, "2 s of this run's time"), (2.4, False, "")]
)
def test_long_compiling_is_mentioned_once(seconds, speaks, said, kept, monkeypatch, capsys):
    monkeypatch.setattr(jit.compiling, "seconds", seconds)
    monkeypatch.setattr(jit.compiling, "kept", kept)
    monkeypatch.setattr(jit.compiling, "announced", False)
    monkeypatch.setattr(program, "runs", True)
    say = terminal.Speaker(speaks)
    say.close()
    say.close()
    assert jit.compiling.announced == bool(said)
    later = "; later runs take them from a cache" if kept else ""
    line = f"compiled  kernels for such data, {said}{later}\n"
    assert capsys.readouterr().out == (line if said else "")


def test_durations_and_objectives():
    told = [formatting.format_duration(seconds) for seconds in (0.4, 59.4, 59.6, 3600, 3725, 90_000)]
    assert told == ["0 s", "59 s", "1 min", "1 h", "1 h 2 min", "1 d 1 h"]
    assert all(len(formatting.format_objective(value)) <= 14 for value in NUMBERS)
    assert formatting.format_objective(0.25) == "0.25000000" and formatting.format_seconds(0.5) == "0.50 s"


def test_lines_go_on_below_what_follows_their_label(columns):
    text = f"data      {'word ' * 40}".rstrip()
    _, *others = formatting.wrap(text, columns).splitlines()
    assert others and all(line.startswith(" " * 10 + "word") for line in others)
    assert formatting.wrap(f"model     {LONG} {LONG}", 80).split() == ["model", LONG, LONG]  # names are never cut


def test_a_width_is_never_tiny(monkeypatch):
    monkeypatch.setenv("COLUMNS", "5")
    assert formatting.terminal_width() == 40
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())
    monkeypatch.delenv("COLUMNS")
    assert formatting.terminal_width() == 80


@pytest.mark.parametrize("quiet, rank", [(True, 0), (False, 1), (False, 0)])
def test_only_the_root_says_that_it_compiles_unless_quiet(quiet, rank, monkeypatch):
    monkeypatch.setattr(program, "runs", False)
    monkeypatch.setattr(jit.compiling, "silent", False)
    main._load_libraries(quiet)
    MPICommunicator(SimpleNamespace(Get_rank=lambda: rank, Get_size=lambda: 2))
    assert program.runs and jit.compiling.silent == (quiet or rank == 1)
