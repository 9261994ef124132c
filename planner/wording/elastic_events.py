"""Sentences for what the elastic controller decides and observes."""
