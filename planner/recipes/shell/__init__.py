"""Reads a shell script as bash does, without running anything: which programs it starts, with which words.

    brackets, words -> nodes, grammar -> values (arithmetic, fields) -> runs (builtins, programs)

`documents` finds the scripts in a README. The package knows no recipe. What it cannot know stays visible in a word:
`scalars.has_shell` finds it.
"""
