"""Reversible repairs of torch and transformers, for users who call ``torch.export`` themselves."""
