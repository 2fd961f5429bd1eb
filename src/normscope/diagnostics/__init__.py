"""The x-ray: collect the signal in every layer of any PyTorch model, and report what is wrong."""
