"""What happens in a run, as values: a frozen class for each kind of event, with its facts and their units. No text."""
