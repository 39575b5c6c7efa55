"""Plan -> Program: the exported graphs, each with the sizes for which it is proven."""
