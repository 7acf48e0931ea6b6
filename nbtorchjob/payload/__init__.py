"""What travels: a call and the runtime as a zipapp, what the process was told; and the value's way back."""
