"""A node's process: the agent, the template that its ranks are forked from, and what watches both."""
