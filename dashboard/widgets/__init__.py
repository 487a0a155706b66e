"""Kinds of widgets that pages are composed of."""
