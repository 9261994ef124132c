"""From values to tables and text for people. Knows rich; decides nothing and reads nothing."""
