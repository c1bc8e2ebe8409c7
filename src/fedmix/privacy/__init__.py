"""Privacy of what clients send: (ε, δ) accounting, and an audit by attacks."""
