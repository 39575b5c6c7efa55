"""Values drawn: long lists folded, tables for notebooks, figures."""
