"""What runs inside an engine's process: nothing here may slow it, block it or need more than it has."""
