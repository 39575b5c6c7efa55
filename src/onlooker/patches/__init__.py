"""Changes of torch for the time of a block: one attribute, what torch prints."""
