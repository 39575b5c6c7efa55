"""Experiments with the model: is it neutral to fill this, may this axis change, may two forms be one graph?"""
