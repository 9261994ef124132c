"""The reference policy: a frozen model, or a table of its log-probabilities."""
