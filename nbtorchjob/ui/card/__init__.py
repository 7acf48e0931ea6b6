"""The live card of one job: pure drawings of its state, and the view that shows them in a cell."""
