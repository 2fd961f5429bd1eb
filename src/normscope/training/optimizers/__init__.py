"""How weights learn: Muon for matrices, AdamW for the rest."""
