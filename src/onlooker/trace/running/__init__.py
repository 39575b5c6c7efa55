"""Runs exported programs of torch in this process, with as little as possible beside the operators."""
