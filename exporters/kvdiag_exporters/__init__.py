"""The sidecar: metric catalogue, collectors, HTTP endpoint and trace-bundle recorder."""
