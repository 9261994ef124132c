"""What the readers of the DPO repository and of HALOs share: both are configured by Hydra, with the same file names."""
