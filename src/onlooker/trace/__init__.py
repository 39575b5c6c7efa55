"""One torch.export of one plan, and everything that is read from it: decisions, regions, equal
graphs.
"""
