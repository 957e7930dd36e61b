"""A demonstration with a small real model on the CPU."""
