"""The measures that are reported, over all ranks, with intervals: of `scored` rows (`distsms.base.scored`)."""
