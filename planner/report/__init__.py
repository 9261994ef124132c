"""From values to lines of text for people, and to JSON. Knows no terminal; decides nothing and reads nothing."""
