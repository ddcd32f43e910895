"""The files of figures: every method, panel and axis has its name in them, and no two methods look alike."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("matplotlib")

import matplotlib.image
import numpy as np

from distsms.optim.solvers.base import SOLVERS
from distsms.page import mpl
from scripts.compare import figures
from scripts.compare.grid import RunSpec, RunStore
from tests.support.problems import made

pytestmark = [pytest.mark.serial, pytest.mark.by_turns]
METHODS = [("lmvm", None), ("lmvm", 10.0), ("lmvm", 1000.0), ("agm", None), ("agm", 10.0), ("bmrm", None)]


@pytest.fixture
def runs(tmp_path):
    for measure in ("rocarea", "prbep"):
        for lam in (1e-2, 1e-4):
            for k, (solver, c_mu) in enumerate(METHODS):
                course = [0.5 + 0.5**step + 0.01 * k for step in range(3, 30)]
                made(tmp_path, RunSpec(measure, lam, solver, c_mu), course, bound=0.4, test=0.9 - 0.01 * k)
    return RunStore(tmp_path).all_finished()


@pytest.mark.by_turns
def test_every_figure_is_drawn_and_named(runs, tmp_path):
    written = figures.draw(runs, "a $et$", tmp_path / "figures")
    names = {path.name for path in written}
    kinds = ("objective", "suboptimality", "test", "c_mu", "agm")
    assert names == {f"{kind}_{m}.{end}" for kind in kinds for m in ("rocarea", "prbep") for end in ("png", "svg")}
    for path in written:
        if path.suffix == ".png":
            assert np.ptp(matplotlib.image.imread(path)[..., :3]) > 0.9  # ink on white
            continue
        text = path.read_text()
        for word in ("lambda = 0.01", "lambda = 0.0001", "seconds of training", "a $et$: "):
            assert f">{word}" in text, (path, word)
    shown = (tmp_path / "figures" / "c_mu_prbep.svg").read_text()
    for word in ("lmvm", "lmvm, c_mu 10", "lmvm, c_mu 1000", "test PRBEP [%]", "best J - least J known", "proved gap"):
        assert f">{word}<" in shown
    assert ">agm<" not in shown
    assert ">lmvm, c_mu 1000<" not in (tmp_path / "figures" / "agm_prbep.svg").read_text()


def test_what_was_not_run_is_not_drawn(runs, tmp_path):
    few = [one for one in runs if one.spec.method in ("lmvm", "bmrm") and one.spec.measure == "prbep"]
    names = {path.name for path in figures.draw(few, "a set", tmp_path / "figures")}
    assert names == {f"{kind}_prbep.{end}" for kind in ("objective", "suboptimality", "test") for end in ("png", "svg")}


def test_a_run_without_a_course_does_no_harm(tmp_path):
    made(tmp_path, RunSpec("prbep", 1e-2, "lmvm"), [], "nonfinite")
    made(tmp_path, RunSpec("prbep", 1e-4, "agm"), [1.0, 1.0])  # never below J(0), and no test rows
    written = figures.draw(RunStore(tmp_path).all_finished(), "a set", tmp_path / "figures")
    assert {path.stem for path in written} == {"objective_prbep", "suboptimality_prbep"}


@pytest.mark.parametrize("lambdas", [1, 2, 3])
def test_the_legend_has_room(tmp_path, lambdas):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for solver, c_mu in (*METHODS, ("lmvm", 100.0), ("bmrm-linesearch", None)):
        for lam in (1e-2, 1e-4, 1e-6)[:lambdas]:
            made(tmp_path, RunSpec("prbep", lam, solver, c_mu), [1.0, 0.5], test=0.5)
    runs = RunStore(tmp_path).all_finished()
    figure = figures.panels(runs, [figures.EXCESS, figures.TESTED], "a set", figures.problems(runs))
    FigureCanvasAgg(figure).draw()
    legend, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
    assert whole.y0 <= legend.y0 < legend.y1 <= min(axes.get_position().y0 for axes in figure.axes) * whole.y1


def test_no_two_methods_look_alike(runs):
    methods = [*figures.STYLES, "lmvm, c_mu 5", "agm, c_mu 5", "bmrm, as in the proofs"]
    looks = figures._styles(methods)
    assert len({look["color"] for method, look in looks.items() if method in figures.STYLES}) == len(figures.STYLES)
    markers = {look["marker"] for look in looks.values()}
    assert len(markers) == len(methods)
    assert not markers & set(figures.END_MARKERS.values())
    assert figures._styles({one.spec.method for one in runs}).items() <= looks.items()  # in every figure the same
    assert figures._styles(["bmrm"]) == {"bmrm": looks["bmrm"]}


def drawn(runs, quantity):
    """Return axes with one quantity of the runs of one problem."""
    return figures.panels(runs, [quantity], "a set", figures.problems(runs)).axes[0]


def test_what_is_not_known_is_grey_and_no_run_vanishes_in_it(tmp_path):
    """The least J known, 0.5, is proved to be within 0.01 of the minimum, so that its run is drawn down to 0.001."""
    made(tmp_path, RunSpec("prbep", 1e-2, "lmvm"), [1.0, 0.6, 0.5], bound=0.4)
    made(tmp_path, RunSpec("prbep", 1e-2, "bmrm"), [1.0, 0.7, 0.55], "time", bound=0.49)
    axes = drawn(RunStore(tmp_path).all_finished(), figures.EXCESS)
    (band,) = axes.patches
    top = band.get_extents().transformed(axes.transData.inverted()).y1
    assert top == pytest.approx(0.01)
    curves = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(curves["lmvm"], [0.5, 0.1, 0.001])
    np.testing.assert_allclose(curves["bmrm"], [0.5, 0.2, 0.05])
    assert axes.get_ylim()[0] < 0.001
    ends = {line.get_marker(): line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 1}
    assert ends == {"*": pytest.approx([0.001]), "X": pytest.approx([0.05])}
    assert {figures.UNKNOWN, figures.PROVED, figures.UNPROVED} <= set(axes.get_legend_handles_labels()[1])


def test_a_least_J_of_zero_can_be_drawn(tmp_path):
    made(tmp_path, RunSpec("prbep", 1e-2, "lmvm"), [1.0, 0.0], bound=0.0)
    axes = drawn(RunStore(tmp_path).all_finished(), figures.EXCESS)
    assert all(np.all(line.get_ydata() > 0) for line in axes.lines if line.get_label() == "lmvm")


def test_early_test_points_do_not_stretch_the_axis(tmp_path):
    made(tmp_path, RunSpec("prbep", 1e-2, "lmvm"), [1.0 / k for k in range(1, 41)], test=0.9)
    path = tmp_path / "cells" / "prbep_0.01_lmvm" / "test.jsonl"
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    for k, measured in enumerate((0.1, 0.3, 0.5, 0.85)):
        rows[k]["prbep"] = measured
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    low, high = drawn(RunStore(tmp_path).all_finished(), figures.TESTED).get_ylim()
    assert 50 < low < 90 < high < 100


def test_test_rows_without_a_measure_do_no_harm(tmp_path):
    """ROCArea is null if the test rows have one class only."""
    path = made(tmp_path, RunSpec("rocarea", 1e-2, "lmvm"), [2.0, 1.0], test=0.5, files=True) / "test.jsonl"
    path.write_text(path.read_text().replace('"rocarea": 0.5', '"rocarea": null'))
    axes = drawn(RunStore(tmp_path).all_finished(), figures.TESTED)
    assert not any(len(line.get_ydata()) for line in axes.lines)


def test_the_lower_bound_figure(tmp_path):
    points = {m: {"lmvm": [(0.1, 5), (0.01, 6)], "bmrm": [(0.1, 9), (0.01, 80)]} for m in ("prbep", "rocarea")}
    theory = {m: lambda epsilon: 1 / (5 * epsilon) for m in points}
    written = mpl.save(figures.lower_bounds(points, theory), tmp_path, "bounds")
    text = written[1].read_text()
    for word in ("epsilon", "lmvm", "bmrm", "PRBEP", "ROCArea", "evaluations to a proved gap of epsilon"):
        assert f">{word}<" in text


def test_every_solver_has_a_style_of_its_own():
    assert set(SOLVERS) <= set(figures.STYLES)
    assert len(set(figures.STYLES.values())) == len(figures.STYLES)
