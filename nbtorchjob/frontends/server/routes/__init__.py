"""The server's routes: one table of URLs, their handlers, and the OpenAPI document of both."""
