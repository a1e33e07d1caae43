"""What is done with built datasets: verify, inspect, merge."""
