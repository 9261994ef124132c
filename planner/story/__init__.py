"""What happened in a run, as values that stay small however long it was. Knows no text for people, no pictures."""
