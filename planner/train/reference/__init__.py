"""The reference policy: a frozen model, or its log-probabilities computed once."""
