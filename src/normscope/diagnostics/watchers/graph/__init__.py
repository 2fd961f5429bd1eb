"""Which parameters reach the loss, and where autograd loses them."""
