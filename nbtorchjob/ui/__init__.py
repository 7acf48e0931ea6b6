"""Drawing jobs: pure functions from a state to HTML and text, and what shows them."""
