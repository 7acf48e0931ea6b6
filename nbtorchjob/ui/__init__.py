"""Drawing jobs: pure functions from a state to HTML and text, and the code that shows them."""
