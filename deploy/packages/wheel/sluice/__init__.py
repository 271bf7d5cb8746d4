"""Sluice: enforced fractions of an NVIDIA GPU. `python -m sluice` runs the command `sluice`."""
