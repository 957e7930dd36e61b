"""The demo: the same questions answered in the original order, in a scheduled order, and with reuse."""
