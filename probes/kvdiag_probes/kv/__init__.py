"""KV-shaped transfers: many descriptors of a model's blocks, over several transports."""
