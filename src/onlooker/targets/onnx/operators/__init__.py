"""Operators of torch in ONNX that its converter lacks, or has for fewer arguments."""
