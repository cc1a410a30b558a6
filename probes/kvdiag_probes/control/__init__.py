"""The control channel between an agent and a probe: HTTP, versioned messages, a credential, limits on everything."""
