"""The parts of `benchmarks/peers.py`: environments, weights, engines, the rounds in which they alternate, results."""
