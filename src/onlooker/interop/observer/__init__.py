"""The arguments and dynamic shapes of a recording as other observers give them."""
