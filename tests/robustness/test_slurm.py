"""Run the scripts of jobs/, edited as a user would edit them, on a real SLURM cluster of two nodes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.cluster import CannotStart, Cluster, missing
from tests.support.program import run, run_json, write_svmlight

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
ROOT = Path(__file__).resolve().parents[2]
SIZE = ("--ntasks=3", "--nodes=2", "--time=10")


@pytest.fixture(scope="module")
def cluster():
    without = pytest.fail if os.environ.get("DISTSMS_NEEDS_SLURM") else pytest.skip
    if absent := missing():
        without(f"SLURM is missing: {', '.join(absent)} not installed (scripts/setup --slurm)")
    home = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with Cluster(home) as slurm:
            yield slurm
    except CannotStart as why:
        without(str(why))
    finally:
        shutil.rmtree(home)


def script(folder, name, **places):
    """Write a copy of a script in which some strings are replaced."""
    text = (ROOT / "jobs" / f"{name}.sbatch").read_text()
    places = {". .venv/bin/activate": f". {ROOT}/scripts/environment", **places}
    for old, new in places.items():
        assert text.count(old) == 1, f"{old!r} must occur once in {name}.sbatch"
        text = text.replace(old, str(new))
    path = folder / f"{name}.sbatch"
    path.write_text(text)
    return path


def log(folder):
    return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(folder.glob("*.log")))


def succeed(cluster, job, folder):
    state = cluster.finished(job)
    assert state["JobState"] == "COMPLETED", f"{state}\n{log(folder)}"
    return state


def course(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path):
    """A working folder with a data set to train on and one to test on."""
    for name, seed in (("train", 0), ("test", 1)):
        write_svmlight(tmp_path / f"{name}.svm", n=400, seed=seed, shift=3.0)
        run("shard", tmp_path / f"{name}.svm", tmp_path / "data" / name)
    return tmp_path


def test_text_to_model(cluster, folder):
    shutil.rmtree(folder / "data")
    sharded = succeed(cluster, cluster.submit(script(folder, "shard"), *SIZE, cwd=folder), folder)
    assert sharded["NodeList"] == "n[1-2]"
    assert run_json("info", folder / "data" / "train")["n"] == 400
    succeed(cluster, cluster.submit(script(folder, "train"), *SIZE, cwd=folder), folder)
    assert run_json("info", folder / "model.h5")["status"] == "proved"


@pytest.mark.by_turns
def test_interrupted_and_requeued(cluster, folder):
    """After each signal the job queues itself again and continues; it proves the same as an uninterrupted run."""
    run("synth", "dense", folder / "big", "--rows", 20000, "--columns", 100, "--quiet")
    hard = {"train data/train": f"train {folder}/big", "--lambda 1e-6": "--lambda 1e-4 --solver bmrm"}
    job = cluster.submit(script(folder, "train", **hard), *SIZE, cwd=folder)
    trace = folder / "model.jsonl"
    for interruption in range(2):
        before = len(course(trace)) if trace.exists() else 0
        cluster.wait(lambda: trace.exists() and len(course(trace)) > before + 20, "more evaluations", 120)  # noqa: B023
        cluster.run("scancel", "--signal=USR1", "--batch", job)
        cluster.wait(lambda: int(cluster.state(job)["Restarts"]) > interruption, "the requeued job", 120)  # noqa: B023
    succeed(cluster, job, folder)
    text = log(folder)
    assert text.count("exit code 75") == 2 and text.count("exit code 0") == 1 and "start 3" in text
    states = course(trace)
    assert [state["evaluation"] for state in states] == list(range(1, len(states) + 1))
    assert all(b["seconds"] >= a["seconds"] and b["best_J"] <= a["best_J"] for a, b in itertools.pairwise(states))
    assert all(b["lower_bound"] >= a["lower_bound"] for a, b in itertools.pairwise(states))
    model = run_json("info", folder / "model.h5")
    run("train", folder / "big", "--lambda", "1e-4", "--output", folder / "alone.h5")
    alone = run_json("info", folder / "alone.h5")
    assert model["status"] == alone["status"] == "proved"
    assert max(model["lower_bound"], alone["lower_bound"]) <= min(model["J"], alone["J"])


@pytest.mark.slow
def test_no_more_restarts_than_wanted(cluster, folder):
    """A job that reaches its time limit at each start ends after the last allowed restart, with exit code 75."""
    places = {"--lambda 1e-6": "--lambda 1e-6 --epsilon 1e-9 --time-limit 0.001s", "restarts=20": "restarts=1"}
    job = cluster.submit(script(folder, "train", **places), *SIZE, cwd=folder)
    state = cluster.finished(job)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("FAILED", "75:0", "1"), log(folder)
    assert run_json("info", folder / "model.h5")["status"] == "time"


def test_a_signal_before_the_program_can_take_it(tmp_path):
    """While Python starts, it kills the ranks; the script ends with them, and puts the job back into the queue."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho $* > requeued; exit 1\n")
    (tmp_path / "scontrol").chmod(0o755)
    places = {"launch=(mpirun)": "launch=(sh -c 'kill -USR1 $$')", ". .venv/bin/activate": ":"}
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    for restarts in (0, 20):
        command = ["bash", script(tmp_path, "train", **places)]
        environment["SLURM_RESTART_COUNT"] = str(restarts)
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 138
        assert "exit code 138" in done.stdout
        requeued = tmp_path / "requeued"
        assert requeued.exists() == (restarts == 0)
        if not restarts:
            assert requeued.read_text() == "requeue 7\n"
            requeued.unlink()


@pytest.mark.by_turns
def test_sweep(cluster, folder):
    """The table has a line for each task, also for one without a model. A wrong number of tasks is refused."""
    sweep = script(folder, "sweep", **{"lambdas=(1e-2 1e-4 1e-6)": "lambdas=(1e-2 1e-4)"})
    size = ("--ntasks=1", "--time=10")
    refused = cluster.submit(sweep, *size, "--array=0", cwd=folder)
    assert cluster.finished(refused)["ExitCode"] == "2:0", log(folder)
    assert "--array=0-3" in log(folder)
    failed, table = "sweep/prbep-1e-2", folder / "sweep" / "table.txt"
    table.parent.mkdir()
    (folder / f"{failed}.jsonl").write_text("notes that are no trace\n")
    for without in ([f"{failed}: no model; see its log, and submit again"], []):
        cluster.finished(cluster.submit(sweep, *size, "--array=0-3", cwd=folder))
        cluster.wait(lambda: table.exists() and len(table.read_text().splitlines()) == 6, "the table", 120)
        lines = table.read_text().splitlines()
        trained = lines[len(without) + 2 :]
        assert lines[: len(without)] == without, log(folder)
        assert sum("rocarea" in line for line in trained) == 2
        assert sum("prbep" in line for line in trained) == 2 - len(without)
        assert all("proved" in line and not line.rstrip().endswith("-") for line in trained), f"{lines}\n{log(folder)}"
        table.unlink()
        (folder / f"{failed}.jsonl").unlink()


@pytest.mark.slow
def test_tasks_that_start_at_the_same_moment(cluster, folder):
    """Fifty arrays of four tasks on two nodes: in a common folder, one task of about 120 lost its daemon."""
    places = {
        '"${launch[@]}" python -m distsms train': '"${launch[@]}" echo',
        "lambdas=(1e-2 1e-4 1e-6)": "lambdas=(1 2)",
    }
    sweep = script(folder, "sweep", **places, **{"sbatch --dependency": ": sbatch --dependency"})
    for _ in range(50):
        job = cluster.submit(sweep, "--ntasks=2", "--time=10", "--array=0-3", cwd=folder)
        cluster.finished(job)
        logs = [path.read_text() for path in folder.glob(f"sweep-{job}_*.log")]
        assert len(logs) == 4 and all(text.count("data/train") == 2 for text in logs), log(folder)


def test_devices(cluster, folder):
    """In CUDA's simulator, since the nodes have no devices; few rows, since that is slow."""
    shutil.rmtree(folder / "data")
    write_svmlight(folder / "few.svm", n=60, seed=0, shift=3.0)
    run("shard", folder / "few.svm", folder / "data" / "train")
    places = {
        "#SBATCH --nodes=1\n": "",
        "#SBATCH --ntasks-per-node=4\n": "",
        "#SBATCH --gpus-per-node=4\n": "",
        "#SBATCH --mem-per-cpu=16G\n": "",
        "cpus-per-task=4": "cpus-per-task=1",
    }
    job = script(folder, "device", **places, **{"launch=(mpirun)": "launch=(mpirun -x NUMBA_ENABLE_CUDASIM=1)"})
    succeed(cluster, cluster.submit(job, "--ntasks=2", "--nodes=2", "--time=10", cwd=folder), folder)
    info = run_json("info", folder / "model.h5")
    assert info["status"] == "proved" and info["device"].startswith("cuda: ") and info["ranks"] == 2


@pytest.mark.by_turns
def test_scaling(cluster, folder):
    """The table has one line for each number of ranks."""
    job = cluster.submit(script(folder, "scaling"), "--ntasks=4", "--time=10", cwd=folder)
    succeed(cluster, job, folder)
    lines = log(folder).rstrip().splitlines()[-3:]
    assert [line.split()[1] for line in lines] == ["1", "2", "4"]
