"""What Canary talks about: plain values and pure decisions, standard library only."""
