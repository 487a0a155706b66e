"""Recorded real runs, played as if the product was attached live; its verdict at each tick against the labels."""
