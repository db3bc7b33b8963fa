"""What proposes draft tokens: one small Protocol and its implementations; no drafter keeps anything beyond its request."""
