"""How torch is made to trace otherwise: each repair with its reason, its link, and when it may go."""
