"""Graphs as the .pt2 files of torch.export."""
