"""What is asked of the model: one file for each family of hypotheses."""
