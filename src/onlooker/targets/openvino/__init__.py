"""Graphs as models of OpenVINO, and what runs them."""
