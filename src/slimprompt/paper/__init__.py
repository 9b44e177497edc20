"""Everything about the paper: studies, published numbers, tables, figures, claims and theory."""
