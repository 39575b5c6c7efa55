"""The graphs of one plan: further traces, the regions that they prove, and trials beside the model."""
