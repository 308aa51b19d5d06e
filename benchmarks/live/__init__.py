"""Real servers on this machine's CPU, with tiny random models: what the live benchmarks share."""
