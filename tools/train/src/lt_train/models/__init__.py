"""The model of a rank: `decoder` from its tokens to their losses; `build_gpt` puts it together from a run's settings."""
