"""What follows from several collectors' samples together: impossible values, utilisation, the transport in use."""
