"""Helpers that every room may use: disk, permissions, plugins, reminders, text. They import no other room."""
