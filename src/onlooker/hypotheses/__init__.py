"""What is tested with the model: one file for each family of hypotheses."""
