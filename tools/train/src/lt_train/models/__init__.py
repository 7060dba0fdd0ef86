"""The model of a rank: `decoder` from its tokens to their losses; `builder` builds it from a run's settings."""
