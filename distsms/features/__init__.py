"""Features that are made from columns: bins, categories, crosses of two, and leaves of forests."""
