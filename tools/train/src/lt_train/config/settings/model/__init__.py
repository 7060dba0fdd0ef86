"""The model: its sizes, its experts, its latent attention, and the words that describe it."""
