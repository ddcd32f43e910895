"""Options from a file: --config, and `distsms info MODEL --config`, which writes the file that repeats a run."""

import json

import pytest

from distsms import cli
from distsms.base.files import read_toml
from distsms.cli.config import as_toml
from tests.support.program import run

LINES = [
    "train data --lambda 1e-4 --bias --measure prbep",
    "train data --bias 2.5 --c-mu 10 --epsilon 1e-3 --time-limit 10m --memory 2GiB -- -tao_ls_type armijo",
    "train a.csv --label 007 --positive 1.0 --drop x,y z --no-report",
    "path data --lambdas 1e-1:1e-4 --no-extend --l1 1e-5",
    "evaluate model.h5 --json data --at precision>=0.9 --at recall>=0.5 --one-based",
    "features data out --bins 8",
]


def given(words, tmp_path=None, text=None):
    """Return what a command line says, with a file of --config if there is a text."""
    return cli.parse(with_file(words, tmp_path, text)).given


def parsed(words, tmp_path, text=None):
    """Return the arguments of a command line, with a file of --config if there is a text, as texts."""
    args = vars(cli.parse(with_file(words, tmp_path, text)))
    left_out = {"config", "signals"}
    return {name: repr(value) for name, value in args.items() if name not in left_out and not callable(value)}


def with_file(words, tmp_path, text):
    """Return the words with --config, if there is a text for its file."""
    if text is None:
        return words
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return [words[0], "--config", str(tmp_path / "run.toml"), *words[1:]]


@pytest.mark.parametrize("line", LINES)
def test_the_file_of_a_run_stands_for_its_command_line(line, tmp_path):
    command, *words = line.split()
    expected, options = parsed([command, *words], tmp_path), json.loads(json.dumps(given(line.split())))
    text = as_toml(options)
    assert parsed([command], tmp_path, text) == expected
    assert len(read_toml(tmp_path / "run.toml")) == len(options) > 1
    assert given([command], tmp_path, text) == options


def test_the_command_line_comes_before_the_file(tmp_path):
    text = 'data = ["old"]\nlambda = 1e-4\ndrop = ["a", "b"]\nreport = "r.html"\nmax-evaluations = 7\nquiet = false\n'
    words = ["train", "new.csv", "--lambda", "1e-2", "--drop", "c", "--no-report"]
    args = parsed(words, tmp_path, text)
    assert args["data"] == "['new.csv']" and args["lam"] == "0.01" and args["drop"] == "['c']"
    assert args["report"] == "None" and args["no_report"] == "True"
    assert args["max_evaluations"] == "7" and args["quiet"] == "False"
    again = parsed(["train"], tmp_path, as_toml(given(words, tmp_path, text)))  # what the line excludes is left out
    assert again | {"given": ""} == args | {"given": ""}


@pytest.mark.parametrize(
    "text, message",
    [
        ("lamda = 1", "no option 'lamda'; did you mean lambda?"),
        ("lambda = -1", "lambda: '-1' is not a positive number"),
        ('solver = "newton"', "solver: invalid choice: 'newton'"),
        ('quiet = "yes"', "quiet: takes true or false"),
        ("lambda = [1, 2]", "lambda: takes one value"),
        ("lambda =", "is no TOML: "),
        ("help = true", "no option 'help'"),
        ('config = "other.toml"', "no option 'config'"),
        ("output = {a = 1}", "output: takes a text, a number"),
        ("data = []", "data: names nothing"),
        ('petsc = "-tao_monitor"', "petsc: takes a list of texts"),
        ('report = "r.html"\nno-report = true', "exclude each other"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(text, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(["train", "data"], tmp_path, text)
    error = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and message in error and "run.toml" in error


def test_what_a_file_switches_off_is_not_given(tmp_path):
    args = parsed(["train", "data"], tmp_path, "bias = false\nquiet = false\n")
    assert args | {"given": ""} == parsed(["train", "data"], tmp_path) | {"given": ""}


def test_words_of_petsc_come_before_those_of_the_file(tmp_path):
    words = ["train", "data", "--", "-tao_max_it", "3"]
    assert "-tao_max_it" in parsed(words, tmp_path, 'petsc = ["-tao_monitor"]')["solver_options"]


def test_texts_of_any_kind_come_back(tmp_path):
    values = {"output": 'o\nl1 = 5 "\x7f\\', "drop": ["é", "\t"], "lambda": 1e-5, "bias": True, "folds": 3}
    (tmp_path / "run.toml").write_text(as_toml(values), encoding="utf-8")
    assert read_toml(tmp_path / "run.toml") == values


def test_a_file_that_is_missing_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.parse(["train", "data", "--config", str(tmp_path / "none.toml")])
    assert "No such file" in capsys.readouterr().err


def test_a_model_says_the_file_that_repeats_its_run(tmp_path):
    rows = "".join(f"{(-1) ** i} 1:{i % 7} 2:{2 * (i % 2) + i % 3}\n" for i in range(40))
    (tmp_path / "rows.svm").write_text(rows, encoding="utf-8")
    first, second = tmp_path / "first.h5", tmp_path / "second.h5"
    run("train", tmp_path / "rows.svm", "--lambda", "1e-2", "--solver", "lbfgs", "--no-report", "--output", first)
    text = run("info", first, "--config")
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    run("train", "--config", tmp_path / "run.toml", "--output", second)
    one, two = (json.loads(run("info", file, "--json")) for file in (first, second))
    assert one["J"] == two["J"] and one["config"] | {"output": str(second)} == two["config"]
    assert one["config"]["lambda"] == 0.01 and "config" not in run("info", first)
    assert "--config is for one model, without --usage or --json" in run("info", "--config", code=1)


def test_two_files_are_refused(tmp_path, capsys):
    """Which of them would count where both say something is not to be guessed."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("lambda = 1.0")
    with pytest.raises(SystemExit) as ended:
        cli.parse(["train", "data", "--config", str(tmp_path / "a"), f"--config={tmp_path / 'b'}"])
    assert ended.value.code == 2 and "--config is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("word, told", [("tran", "did you mean train?"), ("xyzzy", "the commands are shard, features")])
def test_a_command_that_does_not_exist(word, told, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.parse([word, "data"])
    said = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2 and f"there is no command '{word}'; {told}" in said
