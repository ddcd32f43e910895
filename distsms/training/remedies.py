"""What makes a training fit in memory if vectors with a number for each column are too large, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from distsms.base.wording import Message, option
from distsms.optim.settings import Settings

FEW_PAIRS, FEW_PLANES = 5, 10
MOST_RANKS = 1024
SHOWN = 2
"""How many remedies a message names."""
FEWER_COLUMNS = (
    f"leave out columns that few rows use (of a table, `distsms shard` makes fewer columns with {option('min_count')}, "
    f"and with fewer bits of {option('hashed')}; of sequences, with a smaller {option('degree')})"
)


def describe(
    settings: Settings,
    step: str,
    ranks: int,
    here: int,
    smooth: bool,
    columns_matter: bool,
    fits: Callable[[Settings, str, int, int], bool],
) -> str:
    """Return a sentence on what makes the run fit. Local.

    `here` ranks are on a node. `smooth` says whether the solver agm can minimize the measure, and `columns_matter`
    whether the run would fit without vectors with a number for each column. `fits` returns whether a run with other
    settings, another step and other numbers of ranks, in all and on a node, fits.
    """
    found = []
    for way in _ways(settings, step, ranks, here, smooth):
        fitting = (words for words, changed, where, count, on_node in way if fits(changed, where, count, on_node))
        found += list(islice(fitting, 1))
    more = "allow more memory" + f", or {FEWER_COLUMNS}" * columns_matter
    if found:
        return Message(f"What makes it fit: {'; or '.join(found[:SHOWN])}. Otherwise {more}")
    others = f"{option('history')}, {option('planes')} or {option('step')}"
    return Message(f"No other solver, {others} and no number of ranks makes it fit: {more}")


def _ways(
    settings: Settings, step: str, ranks: int, here: int, smooth: bool
) -> Iterator[list[tuple[str, Settings, str, int, int]]]:
    """Yield words, settings, step and numbers of ranks of what might fit, by kind; the smallest change comes first."""
    solvers: list[tuple[Settings, list[str]]] = [(settings, [])]
    if smooth and settings.solver != "agm":
        solvers.append((replace(settings, solver="agm", solver_options=()), [f"{option('solver', 'agm')}"]))
    for usual, words in solvers:
        history, planes = min(usual.history or FEW_PAIRS, FEW_PAIRS), min(usual.planes, FEW_PLANES)
        fewer = replace(usual, history=history, planes=planes)
        less = [f"{option('history', history)}"] * bool(usual.traits.history) + [f"{option('planes', planes)}"]
        sizes = [(usual, words), (fewer, words + less)]
        yield [(" ".join(options), changed, step, ranks, here) for changed, options in sizes if changed != settings]
        first = ranks if step == "root" and ranks > 1 else 2 * ranks
        doubled = [first * 2**k for k in range(MOST_RANKS.bit_length()) if first * 2**k <= MOST_RANKS]
        yield [
            (" ".join([f"{n} ranks{where}, {option('step', 'spread')}", *options]), changed, "spread", n, on_node)
            for n in doubled
            for on_node in ([n] if here == ranks else []) + [min(here, n)]
            for where in [f", {on_node} on each node" if on_node < n else ""]
            for changed, options in sizes
        ]
