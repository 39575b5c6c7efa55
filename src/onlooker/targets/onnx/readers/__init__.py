"""Models of ONNX as the folders that other readers load."""
