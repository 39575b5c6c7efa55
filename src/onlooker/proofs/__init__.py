"""What a trace decides about sizes, and what is proven of it."""
