"""What leaves a client, against what it protects: accounting of (ε, δ), and an audit that attacks."""
