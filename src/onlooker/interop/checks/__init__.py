"""Programs that others exported, compared with the calls of a recording."""
