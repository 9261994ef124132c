"""Field descriptions and metrics that several objectives share."""

BETA = "strength with which the policy is held to its reference"
REFERENCE = "source of the reference's log-probabilities: a frozen model (model), or a table computed once (cached)"
REFERENCE_MODEL = "reference model: a local folder, or a name on the hub. null means the first weights"

PAIR_METRICS = {"reward_margin": "margin", "reward_accuracy": "accuracy"}
"""metric of `planner.train.objectives.pairs.PairObjective` -> its label in a terminal"""
