"""Memory before loading: what is counted, what is refused with which advice, and what the machine says it has."""

from __future__ import annotations

import os
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base import memory
from distsms.base.choices import STEPS
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import FAMILIES, Measure
from distsms.base.memory import peak_memory
from distsms.losses.base import Cost
from distsms.matrix import local
from distsms.matrix.normalization import Normalization
from distsms.optim.settings import Settings
from distsms.parallel.vectors import make_vectors
from distsms.shards import dataset
from distsms.shards.dataset import MemoryBudget, load
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import COMPRESSIONS
from distsms.training import plan
from distsms.training.plan import Needs
from distsms.training.task import Distribution, TrainingTask
from distsms.workflow.path_run import run_path
from distsms.workflow.requests import PathRequest
from distsms.workflow.train import train_task
from tests.support.problems import data
from tests.support.simulated import run_ranks
from tests.support.simulated_job import Turn

sizes = st.integers(0, 10**6)


@pytest.mark.serial
@pytest.mark.parametrize("layout", ["float32", "float64", "pattern", "dense"])
def test_what_is_counted_is_held(tmp_path, layout):
    """The counted data of one rank are the entries that it loads, and 40 bytes a row, order and runs among them."""
    X, y = data(300, 30)
    if layout == "pattern":
        X.data[:] = 1
    dtype = "float32" if layout == "float32" else "float64"
    manifest = write_data(tmp_path, X.toarray() if layout == "dense" else X, y, dtype=dtype)
    features = load(manifest, Communicator()).features
    entries = features.arrays
    held = sum(one.nbytes for one in entries if one is not None)
    assert plan.needs(manifest, Settings(1.0), Cost(0, 0)).data == held + 40 * 300


@pytest.mark.serial
def test_the_root_counts_the_solvers_vectors(tmp_path, monkeypatch):
    X, y = data(20, 7)
    manifest = write_data(tmp_path, X, y)
    few, many = (plan.needs(manifest, Settings(1.0, history=h), Cost(0, 0)) for h in (5, 6))
    assert many.root - few.root == 24 * 7
    assert plan.needs(manifest, Settings(1.0, history=5), Cost(0, 0, 600.0, 70.0)).root - few.root == 600
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert plan.needs(manifest, Settings(1.0), Cost(0, 0)).each - few.each == 2 * 8 * 7


@pytest.mark.serial
def test_spread_vectors_are_every_ranks(tmp_path, monkeypatch):
    """On the root nothing is left, each has a slice; a node's ranks share w, which counts once."""
    X, y = data(20, 9)
    manifest, settings = write_data(tmp_path, X, y), Settings(1.0)
    root, spread = (plan.needs(manifest, settings, Cost(0, 0), plan.Layout(s, 4)) for s in STEPS)
    assert (spread.root, root.each - plan.INTERPRETER) == (0, 8 * 9 * 4)
    libraries = plan.ROOT_LIBRARIES
    assert spread.each - root.each == settings.vectors_held(3) + libraries
    assert root.root == settings.vectors_held(9) + libraries
    monkeypatch.setattr(plan, "SHARED_FROM", 9)
    shared = plan.needs(manifest, settings, Cost(0, 0), plan.Layout("spread", 4, 2))
    assert (shared.node, spread.each - shared.each) == (8 * 9, 8 * 9)
    assert shared.of_node(2, 4) == 2 * shared.of_rank(4) + 8 * 9
    assert "more on each node" in shared.in_words(4, 2) and "root" not in shared.in_words(4, 2)


@pytest.mark.parametrize("p", [1, 7, 100])
@pytest.mark.parametrize("step", STEPS)
def test_the_longest_slice_is_foreseen(step, p, comm):
    made = make_vectors(step, p, comm)
    assert plan.Layout(step, comm.size).longest(p) == made.longest == max(comm.allgather(made.length))


@given(sizes, sizes, sizes, sizes, st.integers(1, 40), st.integers(1, 10**7))
def test_the_ranks_that_are_proposed_fit_and_one_less_does_not(rows, each, root, node, here, there):
    needed = Needs(each, root, node, data=rows)
    fitting = needed.ranks_that_fit(here, there)
    if fitting is None:
        assert needed.root + needed.node + needed.each >= there
        return
    ranks, on_node = fitting
    assert 1 <= on_node <= min(here, ranks)
    assert needed.of_node(on_node, ranks) <= there
    if ranks > on_node:
        assert on_node * (needed.data / (ranks - 1) + needed.each) + needed.node + needed.root > there


@pytest.mark.serial
def test_refusals_say_what_to_do():
    gib = 2**30
    needed = Needs(data=100 * gib, each=gib, root=2 * gib)
    plan.require(needed, 4, [0, 1, 2, 3], 107 * gib)
    plan.require(needed, 4, [2, 3], 52 * gib)  # a node without the root
    with pytest.raises(InputError, match=r"2 rank\(s\) on .* need 52 GiB, but only 51 GiB .* 5 ranks, 2 on each node"):
        plan.require(needed, 4, [2, 3], 51 * gib)
    with pytest.raises(InputError, match=r"as much with more ranks.*for each of the 0 columns. Take fewer planes"):
        plan.require(needed, 4, [0, 1], 3 * gib, advise=lambda: "Take fewer planes")


@pytest.mark.serial
def test_what_each_rank_may_take():
    """A rank holds at most what it is allowed, and is refused less than it needs with everything streamed."""
    gib, mib = 2**30, 2**20
    needed = Needs(data=100 * gib, each=gib, root=2 * gib, rows=20 * gib, row=120, buffers=64 * mib)
    least = needed.least(4, True)
    assert least == gib + 2 * gib + 5 * gib + 64 * mib and needed.least(4, False) == least - 2 * gib
    plan.require(needed, 4, [0, 1, 2, 3], 40 * gib, 10 * gib)
    plan.require(needed, 4, [1], 40 * gib, least - 2 * gib)  # not the root
    with pytest.raises(InputError, match=r"--memory 8 GiB is too little: 8256 MiB are needed on the root"):
        plan.require(needed, 4, [0, 1], 40 * gib, 8 * gib)
    with pytest.raises(
        InputError, match=r"4 rank\(s\) on .* need 40 GiB, but only 39 GiB .*; or give --memory 9984MiB: rows"
    ):
        plan.require(needed, 4, [0, 1, 2, 3], 39 * gib, 10 * gib)
    with pytest.raises(
        InputError, match=r"52 GiB, but only 33 GiB .*; or give --memory 16896MiB"
    ):  # the one that would do
        plan.require(needed, 4, [2, 3], 33 * gib)
    plan.require(needed, 4, [2, 3], 33 * gib, 16896 * mib)
    with pytest.raises(InputError, match=r"with this memory; if .* --memory 8256MiB is enough$"):
        plan.require(needed, 4, [0, 1, 2, 3], 12 * gib)
    with pytest.raises(InputError, match="or give --memory 700MiB"):
        plan.require(Needs(data=2 * gib, each=500 * mib, root=0), 1, [0], 700 * mib)
    with pytest.raises(InputError, match=r"Python and its libraries alone take 215 MiB on a rank"):
        plan.require(needed, 4, [0, 1, 2, 3], 800 * mib)
    assert needed.room(10 * gib, True) == (7 * gib, 120)
    assert needed.room(10 * gib, False).entries(100) == 9 * gib - 100 * 120


def test_what_each_rank_may_take_if_rows_are_streamed(comm):
    """It is the least that a node has for each of its ranks, if that suffices; else the plan fails as usual."""
    gib = 2**30
    needed = Needs(data=100 * gib * comm.size, each=gib, root=2 * gib, row=120, buffers=gib)
    for there, expected in ((200, None), (40, 40 - comm.size), (3, None)):  # GiB on rank 0; others have less and less

        def make(there=there):
            plan.require(needed, comm.size, [comm.rank], (there - comm.rank) * gib if there < 200 else 200 * gib)

        found = plan.memory_to_stream(make, comm)
        assert found == (None if expected is None else (expected + 1) * gib)

    def refuse():
        raise InputError("something else is wrong" if comm.is_root else "--memory")

    assert plan.memory_to_stream(refuse, comm) is None


@pytest.mark.serial
@pytest.mark.parametrize("measure, solver", [("rocarea", "lmvm"), ("rocarea", "bmrm"), ("prbep", "agm")])
@pytest.mark.parametrize("mib", [300, 1000, 3000, 9000])
def test_refusals_of_many_columns_name_what_fits(tmp_path, monkeypatch, measure, solver, mib):
    """Few rows and very many columns: what a message proposes is accepted, and rows are not blamed."""
    monkeypatch.setattr(plan, "available", lambda held=0: 2**40)
    manifest = write_data(tmp_path, sparse.csr_matrix(np.eye(4)), [1, -1, 1, -1])
    manifest = replace(manifest, p=2 * 10**7)
    settings = Settings(1.0, solver=solver)

    def made(settings, ranks=1, step="auto"):
        return plan.make_plan(
            manifest, measure, settings, ranks, list(range(ranks)), Distribution(step=step), memory=mib * 2**20
        )

    try:
        made(settings)
        return
    except InputError as error:
        text = str(error)
    assert "for vectors with a number for each of the 20000000 columns" in text and "fewer rows" not in text
    if mib == 300:
        assert "No other solver" in text
        return
    assert "on each node" not in text  # --memory is for each rank, so that all may share this node
    proposed = re.search(r"What makes it fit: (.*)\. Otherwise", text)[1].split("; or ")
    for words in proposed:
        ranks = int(found[1]) if (found := re.match(r"(\d+) ranks, --step spread", words)) else 1
        options = dict(re.findall(r"--(history|planes|solver) (\w+)", words))
        changed = {name: value if name == "solver" else int(value) for name, value in options.items()}
        made(replace(settings, **changed), ranks, "spread" if ranks > 1 else "auto")


@pytest.mark.serial
def test_remedies_name_only_what_helps(tmp_path, monkeypatch):
    """Neither ranks nor columns help where Python alone takes more; where nodes are full, ranks go to other nodes."""
    X, y = data(400, 10)
    manifest = replace(write_data(tmp_path, X, y), n=10**6, n_pos=5 * 10**5, n_neg=5 * 10**5)
    monkeypatch.setattr(plan, "available", lambda held=0: 2**40)
    for mib, words in (
        (100, r"Allow more memory, since Python and its libraries alone take 215 MiB$"),
        (390, r"or start more ranks: then each has fewer rows$"),
    ):
        with pytest.raises(InputError, match=words):
            plan.make_plan(manifest, "rocarea", Settings(1.0), 1, [0], memory=mib * 2**20)
    monkeypatch.setattr(plan, "available", lambda held=0: 600 * 2**20)
    with pytest.raises(InputError, match=r"What makes it fit: .*\d+ ranks, 1 on each node, --step spread"):
        plan.make_plan(replace(manifest, n=4, nnz=4, n_pos=2, n_neg=2, p=10**7), "rocarea", Settings(1.0), 1, [0])


@pytest.mark.serial
def test_what_an_opening_takes_is_planned_only_if_there_may_be_one():
    settings = Settings(1.0, solver="lbfgs")
    assert settings.opening_held(100, 50, 2, 1000, FAMILIES["prbep"]) == memory.Memory(
        64 * 50 + 24 * 50, 150 * 100 + 1000
    )
    for rows, ranks, entries, measure, other in (
        (101, 2, 1000, "prbep", settings),
        (100, 1, 1000, "prbep", settings),
        (100, 2, 2**27 + 1, "prbep", settings),
        (100, 2, 1000, "logistic", settings),
        (100, 2, 1000, "prbep", replace(settings, checkpoint_every=9.0)),
        (100, 2, 1000, "prbep", replace(settings, l1=1e-3)),
    ):
        assert other.opening_held(rows, 50, ranks, entries, FAMILIES[measure]) == memory.Memory()


@pytest.mark.parametrize("measure", ["rocarea", "pauc@0.1"])
@pytest.mark.serial
def test_the_plan_of_an_opening(tmp_path, measure):
    manifest = write_data(tmp_path, *data(40, 30))
    made = [
        plan.make_plan(manifest, measure, replace(Settings(1.0), checkpoint_every=every), 2, [0, 1]).needs
        for every in (None, 9.0)
    ]
    assert (made[0].each > made[1].each) == (measure == "rocarea")


@pytest.mark.serial
def test_as_many_models_of_a_closed_form_are_scored_in_a_pass_as_fit(tmp_path, monkeypatch):
    """On large data: those of all lambdas, those of one, or none, and then the models are found by iterations."""
    n, mib = 10**8, 2**20
    manifest = replace(write_data(tmp_path, *data(400, 10)), n=n, nnz=10 * n, n_pos=n // 4, n_neg=n - n // 4)

    def made(available, memory=None, models=36):
        monkeypatch.setattr(plan, "available", lambda held=0: available)
        return plan.make_plan(manifest, "normal-auc", Settings(1.0), 1, [0], memory=memory, losses=6, models=models)

    all_models, of_one = (made(2**50, models=models) for models in (36, 6))
    assert (all_models.scored, of_one.scored) == (36, 6)
    whole, less = (of.needs.of_node(1, 1) for of in (all_models, of_one))
    assert whole - less == 30 * 8 * n
    assert [made(there).scored for there in (whole, whole - 1, less, less - 1)] == [36, 6, 6, 0]
    # Data that are streamed have a closed form, too, which takes the fewest passes.
    streamed, fewer = (of.needs.least(1, True) for of in (all_models, of_one))
    assert streamed < whole - 1000 * mib
    for allowed, scored in ((streamed, 36), (streamed - 1, 6), (fewer, 6), (fewer - 1, 0)):
        assert made(allowed, allowed).scored == made(2**50, allowed).scored == scored
    assert made(less, whole).scored == 6  # more memory is allowed than there is


@pytest.mark.serial
@pytest.mark.parametrize("command", ["train", "path"])
def test_all_ranks_have_a_closed_form_or_none_has(tmp_path, monkeypatch, command):
    """Where one of three ranks has no memory for it, all iterate."""
    write_data(tmp_path / "d", *data(100, 5))
    measure, settings = Measure.parse("normal-auc"), Settings(1e-2, solver="lbfgs")
    task = TrainingTask(dataset.read_manifest(tmp_path / "d"), measure, settings)
    request = PathRequest(tmp_path / "d", measure=measure.name, lambdas=[1e-2], folds=2, solver="lbfgs", check=False)
    request = replace(request, output=tmp_path / "p", memory=2**30)  # with a limit, ranks share rows and not folds

    def on_ranks(comm):
        if command == "train":
            return train_task(task, comm).result.evaluations
        return run_path(request, comm).evaluations

    bytes_of_moments = plan.bytes_of_moments
    monkeypatch.setattr(plan, "bytes_of_moments", lambda *words: bytes_of_moments(*words) * (Turn.rank.number != 1))
    found = run_ranks(3, on_ranks)
    assert min(found) == max(found) > 1


def least_room(manifest):
    """What a refusal says that streaming needs at the least."""
    with pytest.raises(InputError, match=r"and \d+ are needed to stream") as refusal:
        load(manifest, Communicator(), normalization=manifest.normalization, budget=MemoryBudget(1))
    needed, more = map(int, re.search(r"and (\d+) are .*: give (\d+)MiB more$", str(refusal.value)).groups())
    load(manifest, Communicator(), normalization=manifest.normalization, budget=MemoryBudget(1 + more * 2**20))
    return needed


@pytest.mark.serial
@pytest.mark.parametrize("kind", ["float32", "float64", "pattern", "dense", "wide"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_streams_take_no_more_than_is_counted(tmp_path, monkeypatch, kind, compression):
    """Arrays of all kinds, while parts are read, checked and normalized; of rows of many lengths."""
    part, read, peaks = 2**15, dataset._start, []

    def traced(*words):
        tracemalloc.start()
        read(*words)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    monkeypatch.setattr(local, "PART_ENTRIES", part)
    monkeypatch.setattr(dataset, "PART_ENTRIES", part)
    rng, (n, p) = np.random.default_rng(0), (11, part) if kind == "wide" else (60_000, 40)
    X = rng.normal(size=(n, p))
    if kind not in ("dense", "wide"):
        keep = rng.random(X.shape) < rng.choice([0, 0.02, 0.1, 1], size=(n, 1))
        X = sparse.csr_matrix(keep.astype(float) if kind == "pattern" else X * keep)
    dtype = "float32" if kind == "float32" else "float64"
    y = np.where(rng.random(n) < 0.5, 1, -1)
    written = write_data(tmp_path, X, y, 2, dtype=dtype, compression=compression)
    for normalize, threads in (("none", 1), ("none", 3), ("standard", 3), ("l2", 1), ("l2", 3)):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        how = Normalization(normalize, np.ones(p) if normalize == "standard" else None)
        manifest = replace(written, normalization=how)
        room = least_room(manifest)
        with monkeypatch.context() as patch:
            patch.setattr(dataset, "_start", traced)
            for _ in range(2):  # the first one loads kernels, too
                rows = load(manifest, Communicator(), normalization=how, budget=MemoryBudget(room)).features
        assert rows.source.nbytes == room <= peaks[-1] <= dataset.buffer_bytes(manifest, threads), (normalize, threads)


@pytest.mark.serial
def test_longer_rows_are_refused_with_what_they_need(tmp_path, monkeypatch):
    """Twice as long as a part, which no manifest tells."""
    monkeypatch.setattr(local, "PART_ENTRIES", 50)
    manifest = write_data(tmp_path, sparse.csr_matrix(np.ones((20, 100))), np.where(np.arange(20) % 2, 1, -1))
    room = least_room(manifest)
    assert load(manifest, Communicator(), budget=MemoryBudget(room)).features.source.nbytes == room == 100 * (2 * 2 + 4)
    with pytest.raises(InputError, match=f"leaves {room - 1} bytes for rows, and {room} are needed"):
        load(manifest, Communicator(), budget=MemoryBudget(room - 1))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/", {}, 4000 * 1024),
        ("0::/", {"memory.max": "max"}, 4000 * 1024),
        ("0::/job/step", {"job/memory.max": "70000", "job/step/memory.max": "max"}, 70000),
        ("0::/job/step", {"job/step/memory.max": "70000", "memory.max": "60000"}, 60000),
        ("9:pids:/x\n4:memory:/job", {"memory/job/memory.limit_in_bytes": "50000"}, 50000),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, 4000 * 1024),
    ],
)
def test_what_is_there(tmp_path, groups, limits, expected):
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    files |= {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n", "proc/self/cgroup": groups + "\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory.available(tmp_path) == expected
    more = 0 if limits and expected < 4000 * 1024 else 5000  # what is held counts as available, but not beyond a limit
    assert memory.available(tmp_path, 5000) == expected + more


@pytest.mark.serial
def test_this_machine_has_some(tmp_path):
    assert 0 < memory.available() and 2**24 < memory.resident() < 2**40
    assert memory.resident(tmp_path) == peak_memory()
    assert memory.available(tmp_path) == np.prod([os.sysconf(f"SC_{name}") for name in ("PHYS_PAGES", "PAGE_SIZE")])
