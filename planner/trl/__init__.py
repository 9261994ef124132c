"""The exact batch inside TRL's SFTTrainer and DPOTrainer, and the Trainer of transformers.

    from planner.trl import exact

    trainer = exact(SFTTrainer, global_batch=128)(model=..., args=SFTConfig(...), train_dataset=...)
    trainer.train(resume_from_checkpoint="newest")

docs/guides/trl.md is the guide. transformers is imported when `exact` is called.
"""

from planner.trl.exact import exact as exact
