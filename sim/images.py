"""Photographs for simulations: see `sw.images`, which quantisation needs too."""

from sw.images import PHOTOGRAPHS, photograph

__all__ = ["PHOTOGRAPHS", "photograph"]
