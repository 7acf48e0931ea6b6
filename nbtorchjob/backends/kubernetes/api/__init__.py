"""All access to an API server: logins, requests, watches, and what its answers mean."""
