"""What the server answers: one table of URLs, their handlers, and the OpenAPI document of both."""
