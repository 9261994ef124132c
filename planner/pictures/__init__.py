"""A run's story as SVG, drawn by matplotlib. Knows no files and no page."""
