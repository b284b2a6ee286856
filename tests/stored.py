"""How servers keep records, for tests that read them there."""

SHIFT_BYTES = 8
"""What stands in front of each record: this server's clock less the record's (``lua/_record.lua``)."""
