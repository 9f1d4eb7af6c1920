"""``packhorse bench serve``: a server under load, as its clients see it."""
