"""Graphs as ONNX files, run by ONNX Runtime."""
