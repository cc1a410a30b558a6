"""The demo: a real prefill and a real decode process, a fault that nobody announced, and a recording of both."""
