"""What loss functions get, and what the scalars that backward starts from consist of."""
