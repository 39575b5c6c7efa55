"""Plan -> Program: one exported graph per regime, behind one dispatcher."""
