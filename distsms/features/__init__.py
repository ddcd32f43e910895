"""Features that are made from columns: leaves of forests."""
