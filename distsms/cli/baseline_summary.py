"""What `distsms baseline` prints and writes at the end: the table, the sentences, and baseline.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distsms.base.measures import display_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from distsms.optim.settings import Settings
    from distsms.shards.manifest import Manifest
    from distsms.workflow.baseline import BaselineStore, FoldedRows


def _notes(identity: dict[str, Any], manifest: Manifest) -> list[str]:
    """Return sentences on what the folds do not take into account."""
    from distsms.shards.groupby import doubles_warning
    from distsms.workflow import folds
    from distsms.workflow.folds import labels_warning

    by = identity["folds_by"]
    applying = [kind for kind in folds.CAVEATS if kind == by or (kind == "groups" and manifest.group)]
    warnings = filter(None, [doubles_warning(manifest, by), labels_warning(manifest)])
    return [f"Note: {folds.CAVEATS[kind]}." for kind in applying] + [f"Warning: {warning}." for warning in warnings]


def conclude(
    store: BaselineStore,
    identity: dict[str, Any],
    rows: FoldedRows,
    settings: Settings,
    select: str | None,
    manifest: Manifest,
    say: Callable[[str], None],
) -> None:
    """Print the table of all complete fits in the folder, and write baseline.json. Call this on the root only."""
    from distsms.workflow import baseline_text, method_results

    measure = identity["measure"]
    fits = store.fits()
    results = method_results.evaluate_methods(store, fits, rows, measure, select)
    of_head = method_results.evaluate_head(store, fits, rows, measure, select)
    how = f"Settings are chosen by {display_name(select)} on the other folds." if select else ""
    sentences = baseline_text.sentences(results, measure, select) + baseline_text.head_sentences(of_head)
    sentences += baseline_text.describe_beyond([results, *of_head.values()], sentences)
    sentences += [
        *filter(None, [how]),
        *method_results.check_logistic(results, rows, measure, settings),
        *_notes(identity, manifest),
    ]
    say(f"\n{baseline_text.table(results, select or measure)}\n")
    if of_head:
        say(
            "head of the ranking; for each measure, the settings of all methods are those that are best by this measure"
        )
        say(f"{baseline_text.head_table(of_head)}\n")
    for sentence in sentences:
        say(f"warning   {rest}" if (rest := sentence.removeprefix("Warning: ")) != sentence else sentence)
    store.describe(
        identity,
        solver=settings.solver,
        select=select or measure,
        methods=[result.as_json() for result in results],
        head={name: [result.as_json() for result in found] for name, found in of_head.items()},
        sentences=sentences,
    )
    say(f"\nThe results are in {store.identity}, and each fit is beside it in {store.parts}/")
