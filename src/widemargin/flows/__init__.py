"""How training reaches a margin: batched networks, losses in the log domain, algorithms, records."""
