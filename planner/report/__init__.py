"""Turns values into lines of text for people, and into JSON. It decides nothing, reads nothing and prints nothing."""
