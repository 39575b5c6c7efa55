"""Models of ONNX made to be served: operators of ONNX Runtime, and caches updated in place."""
