"""Plan and Sizes -> real arguments: lawful tensors, grown from observed ones."""
