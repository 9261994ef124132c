"""Helpers that every room may use: disk, permissions, plugins, wait reports, text. They import no other room."""
