"""The walk of one prompt, one file per step, and the ports that it walks through. Only this layer commits."""
