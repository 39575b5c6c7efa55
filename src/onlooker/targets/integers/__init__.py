"""Weights as integers in graphs of torch: made, and found where a checkpoint has them."""
