"""The scheduler: one leader runs the jobs of `domain.schedule` and sends notices; it holds no state of its own."""
