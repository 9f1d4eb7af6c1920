"""One file a route."""
