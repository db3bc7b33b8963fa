"""The walk, in the order in which a prompt takes it: mirror, shadow, assess, control, publish."""
