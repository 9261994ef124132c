"""HALOs (ContextualAI/HALOs) and its branch legacy: their keys, and what they do with a batch."""
