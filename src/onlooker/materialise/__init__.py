"""Plan and Sizes -> real arguments: valid tensors, grown from observed ones."""
