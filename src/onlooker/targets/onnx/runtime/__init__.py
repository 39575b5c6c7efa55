"""ONNX Runtime: its sessions, their settings and bounds, and how they are called."""
