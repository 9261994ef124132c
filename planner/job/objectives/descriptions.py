"""What several objectives say in the same words."""

BETA = "how strongly the policy is held to its reference"
REFERENCE = "log-probabilities of the first weights: from a second frozen model, or computed once and kept in the run"
REFERENCE_MODEL = "another model than the first weights: a local folder, or a name on the hub"

PAIR_METRICS = {"reward_margin": "margin", "reward_accuracy": "accuracy"}
"""what a terminal shows of the metrics of `planner.train.objectives.pairs.PairObjective`"""
