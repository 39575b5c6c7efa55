"""Beside the values: checks of arguments, enums, locks, logging, progress and deprecation."""
