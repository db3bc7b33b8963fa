"""The data plane: takes in copies of production requests; it never answers a client's prompt and never slows a gateway."""
