"""Graphs as programs of ExecuTorch."""
