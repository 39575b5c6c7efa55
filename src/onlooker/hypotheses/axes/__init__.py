"""Axes that no call changed: the families that run a model with other sizes of them."""
