"""The service: a model behind HTTP that loses nothing which it has acknowledged (extra `serve`)."""
