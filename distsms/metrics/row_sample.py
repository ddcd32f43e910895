"""Whether rows on which a model is measured are among its training rows, whatever file they come from: two rows hardly
ever have the same score. So a training keeps keys of a sample: hashes of label and score in very small units, which
also say whether a row is in the sample. Rows with equal keys show what chance does.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.hashing import row_keys
from distsms.base.schema import Fields, is_number, is_text
from distsms.base.scored import Scored
from distsms.base.wording import Message, option
from distsms.metrics.row_weights import mean_and_deviation

SIZE = 2**12
"""About so many training rows are sampled; all of them if they are fewer."""
RESOLUTION = {"float64": 1e-9, "float32": 1e-5}
"""The unit of the scores in their standard deviations, for values that are stored with this type."""
LEAST, ERRORS = 0.01, 4.0
"""Training rows are named from this share on, if it is more than ERRORS standard errors above what chance explains."""
RECORD: Fields = {"unit": is_number, "share": is_number, "repeated": is_number, "keys": is_text}


def sample_rows(scored: Scored, dtype: str = "float64") -> dict[str, Any] | None:
    """Return what a model keeps of its training rows of this type; None if scores are few, and none of them is in the
    sample. **Collective.**"""
    comm, deviation = scored.comm, mean_and_deviation(replace(scored, weights=None))[1]
    if not 0 < deviation < math.inf:
        return None
    unit = 2.0 ** math.floor(math.log2(RESOLUTION[dtype] * deviation))  # by which division is exact
    share = min(1.0, SIZE / sum(comm.allgather(len(scored.scores))))
    sampled = _sampled_keys(scored, unit, share)
    keys, counts = np.unique(comm.allgather_rows(sampled, comm.allgather(len(sampled))), return_counts=True)
    if not len(keys):
        return None
    repeated = float(counts[counts > 1].sum() / counts.sum())
    text = base64.b64encode(keys.astype("<u4").tobytes()).decode()
    return {"unit": unit, "share": share, "repeated": repeated, "keys": text}


def share_of_training_rows(sample: Mapping[str, Any] | None, scored: Scored) -> float:
    """Return the share of rows that are in a model's `sample_rows`; 0 if chance may explain it. **Collective.**"""
    if sample is None or not sample["keys"]:
        return 0.0
    of_model = np.frombuffer(base64.b64decode(sample["keys"]), "<u4")
    sampled = _sampled_keys(scored, sample["unit"], sample["share"])
    rows, equal = scored.comm.sum(np.array([len(sampled), np.count_nonzero(np.isin(sampled, of_model))])).tolist()
    by_chance = sample["repeated"]
    if not rows or by_chance == 1:
        return 0.0
    error = math.sqrt(by_chance * (1 - by_chance) * (1 / rows + 1 / len(of_model)))
    share = (equal / rows - by_chance) / (1 - by_chance)
    return float(share) if share >= LEAST and equal / rows > by_chance + ERRORS * error else 0.0


def describe_share(share: float, model: str = "the model") -> str:
    """Return a warning that a share of the rows are training rows of a model; "" if it is 0."""
    if not share:
        return ""
    good = f"{describe_part(share)} were training rows of {model}, so its measures on them are too good"
    unsure = "their intervals do not say what new rows will show"
    held_out = f"Measure it on rows that were held out, as by {option('split', (0.8, 0.2))} of train and shard."
    return Message(f"{good}, and {unsure}. {held_out}")


def describe_part(share: float) -> str:
    """Return which part of the rows are training rows: "all of these rows", or about how many per cent."""
    return "All of these rows" if share > 0.99 else f"About {100 * share:.2g} % of these rows"


def _sampled_keys(scored: Scored, unit: float, share: float) -> NDArray[np.uint32]:
    """Return the keys, the lower halves of hashes, of the rows that the upper halves put into the sample. Local."""
    bits = (np.rint(scored.scores / unit) + 0.0).view(np.uint64)  # 0.0, and never -0.0
    hashes = row_keys(bits ^ (scored.labels > 0).astype(np.uint64), 0)
    return hashes[(hashes >> np.uint64(32)) < share * 2.0**32].astype(np.uint32)
