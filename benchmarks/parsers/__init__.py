"""What runs inside another system's environment: its own parser on our texts, its figures back as JSON."""
