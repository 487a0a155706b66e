"""The transaction log of wandb."""
