"""The decisions of a trace about sizes, and what is proven of them."""
